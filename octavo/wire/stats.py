"""What a step reports for metrics: counts since the last report and gauges of now."""

from msgspec import Struct


class StepStats(Struct, array_like=True, omit_defaults=True, gc=False):
    """Gauges (``running`` to ``kv_usage``, a fraction) and counters since the last report (the rest).

    Counters are of the whole engine and go to every client that hears a report: where there are several clients, one of
    them adds up. ``deferred``: of those ``waiting``, how many wait for something other than room, such as a grammar or
    a prefix that another request computes. ``drafts``: rows whose drafts were verified, with ``draft_tokens`` in all;
    ``accepted[i]``: how often the draft at place i was right.
    """

    running: int = 0
    waiting: int = 0
    deferred: int = 0
    kv_usage: float = 0.0
    steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted: list[int] = []
