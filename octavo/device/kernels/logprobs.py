"""Log-probabilities: the ids first, then only theirs are normalised."""

import torch
from torch import Tensor

#: Numbers that a temporary holds at most.
PIECE = 1 << 20


def log_sum_exp(logits: Tensor) -> Tensor:
    """float32[N] of float32 logits [N, V], in pieces of rows. A row's result does not depend on its neighbours."""
    return log_sum_exp_torch(logits)


def log_sum_exp_torch(logits: Tensor) -> Tensor:
    """By log_softmax, which takes rows one by one: torch's sums split a lone row between threads."""
    best = logits.amax(-1)
    rows = max(1, PIECE // logits.shape[1])
    normal = [piece.log_softmax(-1).amax(-1) for piece in logits.split(rows)]
    return best - torch.cat(normal) if normal else best


def top_ids(logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The ``width`` most likely ids int32[N, width] and their logits, most likely first."""
    values, ids = logits.topk(width, -1)
    return ids.to(torch.int32), values


def ranks(logits: Tensor, chosen: Tensor) -> Tensor:
    """int32[N]: how many tokens are at least as likely as one whose logit is ``chosen`` float32[N]; 1 is the best."""
    return (logits >= chosen.unsqueeze(1)).sum(-1, dtype=torch.int32)
