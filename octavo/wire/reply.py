"""What the core tells a client (a front) after a step: columns for tokens, words only where there is news."""

import enum

from msgspec import Struct, field

from octavo.wire.arrays import NO_INTS, Ints
from octavo.wire.result import LogprobArrays
from octavo.wire.stats import StepStats


class FinishReason(enum.IntEnum):
    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3

    @property
    def word(self) -> str:
        """As OpenAI's API says it: stop, length, abort, error."""
        return self.name.lower()


class AbortReason(enum.IntEnum):
    CLIENT = 0  # the caller went away or asked
    STOP_STRING = 1  # the front found a stop string: not an abort for the user, only the end
    DEADLINE = 2
    SHUTDOWN = 3


class RequestDelta(Struct, array_like=True, omit_defaults=True, gc=False):
    """News of one request beside its tokens; every field but ``handle`` is None where there is none.

    ``scheduled`` and ``first``: monotonic seconds at which it first got a row and at which its first token was known,
    each told once, at once, however seldom tokens are told.
    ``cached``: prompt tokens that the prefix cache gave (told once, at admission to a row).
    ``stop``: the stop token id that ended it (None for end-of-sequence). ``error``: why it failed.
    ``logprobs``: one row a token of this delta; ``prompt_logprobs``: pieces in order, entry 0 of the first piece speaks
    of prompt token 1.
    """

    handle: int
    finish: FinishReason | None = None
    stop: int | None = None
    error: str | None = None
    cached: int | None = None
    scheduled: float | None = None
    first: float | None = None
    logprobs: LogprobArrays | None = None
    prompt_logprobs: list[LogprobArrays] | None = None


class Admitted(Struct, tag="admitted", array_like=True, gc=False):
    handle: int


class Refused(Struct, tag="refused", array_like=True, gc=False):
    """The core will not run the request: ``status`` and ``reason`` are the client's answer."""

    handle: int
    status: int
    reason: str
    param: str | None = None
    retry_after: float = 0.0


class StepReply(Struct, array_like=True, gc=False):
    """To one client, at most once a step. Request ``handles[i]`` gets ``counts[i]`` tokens of ``tokens``, in order.

    Order of reading: answers, then tokens, then deltas (a delta's finish comes after the tokens of the same reply).
    """

    client: int
    handles: Ints = field(default_factory=lambda: NO_INTS)
    counts: Ints = field(default_factory=lambda: NO_INTS)
    tokens: Ints = field(default_factory=lambda: NO_INTS)
    deltas: list[RequestDelta] = field(default_factory=list)
    answers: list[Admitted | Refused] = field(default_factory=list)
    stats: StepStats | None = None
