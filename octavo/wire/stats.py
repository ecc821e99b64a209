"""What a step reports for metrics: counts since the last report and gauges of now."""

from msgspec import Struct


class StepStats(Struct, array_like=True, omit_defaults=True, gc=False):
    """Gauges (``running`` to ``kv_usage``, a fraction) and counters since the last report (the rest)."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    aborted: int = 0
    failed: int = 0
    step_seconds: float = 0.0
