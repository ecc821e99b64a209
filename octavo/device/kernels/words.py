"""A step's words for the ring (``runner.ring``): tag << 32 | value, the step's pulse first, then its logit rows."""

import torch
from torch import Tensor

#: Values that are no token: nothing was said; the logits were not numbers; no token was possible.
SILENT, NOT_A_NUMBER, NO_TOKEN = 0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFFD
#: Tags are under this, a power of two.
TAGS = 1 << 30


def words(tokens: Tensor, counts: Tensor, living: Tensor, scores: Tensor, clock: Tensor) -> Tensor:
    """int64[1 + N] of tokens, counts int64[N], living bool[N] (before the step) and scores float32[N]; ``clock``
    int64[1] has the step's tag, and the next one's after it."""
    values = tokens.masked_fill(counts == 0, SILENT)
    unsound = living & ~scores.isfinite()
    values.masked_fill_(unsound, NOT_A_NUMBER).masked_fill_(unsound & (scores == float("-inf")), NO_TOKEN)
    out = torch.nn.functional.pad(values, (1, 0), value=SILENT).bitwise_or_(clock << 32)
    clock.add_(1).bitwise_and_(TAGS - 1)
    return out
