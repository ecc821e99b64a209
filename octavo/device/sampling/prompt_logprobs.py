"""Log-probabilities of prompt tokens, in pieces of positions."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from octavo.device.kernels.logprobs import PIECE
from octavo.device.sampling.logprobs import report
from octavo.wire.result import LogprobArrays


def prompt_logprobs(
    hidden: Tensor, targets: Tensor, logits_of: Callable[[Tensor], Tensor], vocab: int, width: int, normal: bool = True
) -> LogprobArrays:
    """hidden [n, H] of positions whose next tokens are ``targets`` int64[n]: entry j speaks of ``targets[j]``.

    ``logits_of``: [m, H] -> float32 [m, V]. Beside the result at most ``PIECE`` logits exist at a time.
    """
    step = max(1, PIECE // vocab)
    pieces = [
        report(logits_of(part), chosen, [width] * len(part), normal=normal)
        for part, chosen in zip(hidden.split(step), targets.split(step), strict=True)
    ]
    if len(pieces) == 1:
        return pieces[0]
    return LogprobArrays(
        *(np.concatenate(columns) for columns in zip(*((p.ids, p.values, p.ranks) for p in pieces), strict=True))
    )


def targets_of(history: Tensor, row: int, start: int, stop: int) -> Tensor:
    """int64: tokens ``start <= i < stop`` of a row, of history int32[R + 1, L]."""
    return history[row, start:stop].to(torch.int64)
