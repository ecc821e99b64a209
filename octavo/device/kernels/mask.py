"""Hard rules: bit masks (grammars, allowed ids), added bias, forbidden ids, bad words."""

import numpy as np
import torch
from torch import Tensor


def apply_bits(logits: Tensor, bits: Tensor) -> None:
    """In place: -inf where bit v of ``bits`` int32[N, ceil(V / 32)] is 0."""
    if logits.is_cpu:
        apply_bits_cpu(logits, bits)
    else:
        apply_bits_torch(logits, bits)


def apply_bits_cpu(logits: Tensor, bits: Tensor) -> None:
    """numpy opens bits, and ``where`` picks, several times as fast as shifts and ``masked_fill_``."""
    may = np.unpackbits(bits.numpy().view(np.uint8), axis=1, bitorder="little")[:, : logits.shape[1]]
    torch.where(torch.from_numpy(may.view(np.bool_)), logits, logits.new_tensor(float("-inf")), out=logits)


def apply_bits_torch(logits: Tensor, bits: Tensor) -> None:
    shifts = torch.arange(32, dtype=torch.int32, device=bits.device)
    allowed = ((bits.unsqueeze(-1) >> shifts) & 1).flatten(1)[:, : logits.shape[1]]
    logits.masked_fill_(allowed == 0, float("-inf"))


def add_bias(logits: Tensor, ids: Tensor, values: Tensor) -> None:
    """In place: logits[i, ids[i, j]] += values[i, j]; ids int32[N, m], -1 where unused, none twice in a row."""
    add_bias_torch(logits, ids, values)


def add_bias_torch(logits: Tensor, ids: Tensor, values: Tensor) -> None:
    logits.scatter_add_(1, ids.clamp(min=0).long(), values.masked_fill(ids < 0, 0.0))


def forbid(logits: Tensor, ids: Tensor) -> None:
    """In place: -inf for ids int32[N, m], -1 where unused."""
    if logits.is_cuda:
        forbid_rows_torch(logits, ids)
    else:
        forbid_torch(logits, ids)


def forbid_rows_torch(logits: Tensor, ids: Tensor) -> None:
    """Without asking the device how many there are: a minimum with -inf, or with +inf where unused."""
    ends = torch.zeros_like(ids, dtype=logits.dtype).masked_fill_(ids >= 0, float("-inf"))
    ends.masked_fill_(ids < 0, float("inf"))
    logits.scatter_reduce_(1, ids.clamp(min=0).long(), ends, "amin")


def forbid_torch(logits: Tensor, ids: Tensor) -> None:
    row, column = (ids >= 0).nonzero(as_tuple=True)
    logits[row, ids[row, column].long()] = float("-inf")


def bad_ends(words: Tensor, recent: Tensor) -> Tensor:
    """Tokens that would complete a bad word: int32[N, w], -1 where the word does not apply.

    words int32[N, w, m]: each word's ids at the right end, -1 before them (all -1: no word); recent int32[N, m - 1]:
    the row's last tokens at the right end, -2 before the first.
    """
    return bad_ends_torch(words, recent)


def bad_ends_torch(words: Tensor, recent: Tensor) -> Tensor:
    before = words[:, :, :-1]
    match = ((before == recent.unsqueeze(1)) | (before < 0)).all(-1)
    return words[:, :, -1].masked_fill(~match, -1)
