"""StepResult and its extras: what the device found, on its way to the core."""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct, field

from octavo.wire.arrays import Floats, Ints, Longs

#: The fault of a row whose grammar and limits, taken together, left no token; its request asked for that.
NO_TOKEN_ALLOWED = "no token is allowed here"
#: What the fault of a row begins with whose grammar, at some text, passes the limits of masks: no fault of the server.
TOO_COMPLEX = "the grammar of this request is too complex for the text that it came to"


class LogprobArrays(Struct, array_like=True, gc=False):
    """Log-probabilities of N positions, W columns each: column 0 is the chosen token, then the most likely ones.

    ids int32[N, W], values float32[N, W], ranks int32[N] (of the chosen token, 1 = most likely). A row that asked for
    fewer columns reads only its own first ones; unused columns have id -1.
    """

    ids: Ints
    values: Floats
    ranks: Ints


def joined(parts: Sequence[LogprobArrays]) -> LogprobArrays:
    """The positions of one or more blocks one behind the other, as wide as the widest."""
    if len(parts) == 1:
        return parts[0]
    width = max(part.ids.shape[1] for part in parts)

    def wide(array: np.ndarray, fill: float) -> np.ndarray:
        missing = width - array.shape[1]
        return np.pad(array, ((0, 0), (0, missing)), constant_values=fill) if missing else array

    return LogprobArrays(
        np.concatenate([wide(part.ids, -1) for part in parts]),
        np.concatenate([wide(part.values, -np.inf) for part in parts]),
        np.concatenate([part.ranks for part in parts]),
    )


class PromptLogprobs(Struct, array_like=True, gc=False):
    """Log-probabilities of prompt positions ``start <= i < start + N`` of one row: entry j speaks of token
    start + j."""

    row: int
    epoch: int
    start: int
    arrays: LogprobArrays


class StepExtras(Struct, array_like=True, gc=False):
    """The bulky part of a result. ``logprobs`` are of the rows ``rows`` (indexes into ``StepPlan.rows``), in order: one
    position for each token that the row said in this step."""

    rows: Ints | None = None
    logprobs: LogprobArrays | None = None
    prompt: list[PromptLogprobs] = field(default_factory=list)
    transfer: bytes | None = None


class StepResult(Struct, array_like=True, gc=False):
    """tokens int64[B, K+1] and how many of each row count, int32[B]: 0 where the row did not sample. K: the most drafts
    of a row in this step. Nothing counts behind a token that ends its request (a stop, the limit).

    ``fault`` says what went wrong with the whole step, ``row_faults`` (index into ``StepPlan.rows`` -> text) with
    single rows: those requests fail, others go on.
    """

    step: int
    tokens: Longs
    counts: Ints
    fault: str | None = None
    row_faults: dict[int, str] = field(default_factory=dict)
