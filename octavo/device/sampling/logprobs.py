"""What log-probabilities a row wants, and their arrays."""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from octavo.device.batch.buffers import ship
from octavo.device.kernels.logprobs import PIECE, log_sum_exp, ranks, top_ids
from octavo.wire.result import LogprobArrays

#: What is reported: of the model's own logits or of those that the token was drawn from; normalised or as they are.
LogprobsMode = Literal["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"]


def report(
    logits: Tensor,
    chosen: Tensor,
    widths: Sequence[int],
    named: Sequence[np.ndarray | None] | None = None,
    normal: bool = True,
) -> LogprobArrays:
    """Log-probabilities of float32 logits [N, V]: the chosen token int64[N], then the ``widths[i]`` most likely ones
    (-1: all) or the ids ``named[i]``; logits themselves unless ``normal``.

    Works through pieces of rows, so that beside the result only a few times ``PIECE`` numbers are held.
    """
    return _report(lambda part: logits[part], logits.shape[1], chosen, widths, named, normal)


def report_prompt(
    hidden: Tensor, targets: Tensor, logits_of: Callable[[Tensor], Tensor], vocab: int, width: int, normal: bool = True
) -> LogprobArrays:
    """As ``report`` for positions whose hidden states are [n, H] and whose next tokens are ``targets`` int64[n].

    ``logits_of``: [m, H] -> float32 [m, V]; only a piece's logits exist at a time.
    """
    return _report(lambda part: logits_of(hidden[part]), vocab, targets, [width] * len(targets), None, normal)


def report_later(
    logits: Tensor,
    chosen: Tensor,
    widths: Sequence[int],
    named: Sequence[np.ndarray | None] | None,
    normal: bool,
    bring: Callable[[Tensor], np.ndarray],
) -> Callable[[], LogprobArrays]:
    """As ``report``, without waiting for the device. ``bring`` gives an array that will hold a tensor; when all of them
    are there, the answer may be called."""
    vocab = logits.shape[1]
    wide = [vocab if width < 0 else min(width, vocab) for width in widths]
    ids = list(named) if named is not None else [None] * len(wide)
    total = log_sum_exp(logits) if normal else torch.zeros(len(logits), device=logits.device)
    own = logits.gather(1, chosen.unsqueeze(1))
    brought = [bring(chosen), bring(own.squeeze(1) - total), bring(ranks(logits, own.squeeze(1)))]
    most = max((width for width, some in zip(wide, ids, strict=True) if some is None), default=0)
    tops = []
    if most:
        best, values = top_ids(logits, most)
        tops = [bring(best), bring(values - total.unsqueeze(1))]
    asked = {
        row: bring(logits[row, ship(some.astype(np.int64), logits.device)] - total[row])
        for row, some in enumerate(ids)
        if some is not None
    }

    def finish() -> LogprobArrays:
        lengths = [width if some is None else len(some) for width, some in zip(wide, ids, strict=True)]
        shape = len(wide), 1 + max(lengths, default=0)
        out = LogprobArrays(np.full(shape, -1, np.int32), np.full(shape, -np.inf, np.float32), brought[2].copy())
        out.ids[:, 0], out.values[:, 0] = brought[0], brought[1]
        for row, (length, some) in enumerate(zip(lengths, ids, strict=True)):
            part = slice(1, 1 + length)
            if some is not None:
                out.ids[row, part], out.values[row, part] = some, asked[row]
            elif length:
                out.ids[row, part], out.values[row, part] = tops[0][row, :length], tops[1][row, :length]
        return out

    return finish


def _report(
    logits_of: Callable[[slice], Tensor],
    vocab: int,
    chosen: Tensor,
    widths: Sequence[int],
    named: Sequence[np.ndarray | None] | None,
    normal: bool,
) -> LogprobArrays:
    count = len(chosen)
    wide = [vocab if width < 0 else min(width, vocab) for width in widths]
    for i, ids in enumerate(named or []):
        if ids is not None:
            wide[i] = len(ids)
    shape = count, 1 + max(wide, default=0)
    # The result comes first: small lasting arrays between large passing ones would leave holes in the heap.
    out = LogprobArrays(np.full(shape, -1, np.int32), np.full(shape, -np.inf, np.float32), np.empty(count, np.int32))
    rows = max(1, PIECE // vocab)
    for low in range(0, count, rows):
        part = slice(low, min(low + rows, count))
        _fill(out, part, logits_of(part), chosen[part], wide[part], None if named is None else named[part], normal)
    return out


def _fill(
    out: LogprobArrays,
    part: slice,
    logits: Tensor,
    chosen: Tensor,
    wide: Sequence[int],
    named: Sequence[np.ndarray | None] | None,
    normal: bool,
) -> None:
    total = log_sum_exp(logits) if normal else torch.zeros(len(logits), device=logits.device)
    own = logits.gather(1, chosen.unsqueeze(1))
    out.ids[part, 0] = chosen.numpy(force=True)
    out.values[part, 0] = (own.squeeze(1) - total).numpy(force=True)
    out.ranks[part] = ranks(logits, own.squeeze(1)).numpy(force=True)
    most = max((width for i, width in enumerate(wide) if named is None or named[i] is None), default=0)
    if most:
        ids, values = top_ids(logits, most)
        ids_host, values_host = ids.numpy(force=True), (values - total.unsqueeze(1)).numpy(force=True)
        for i, width in enumerate(wide):
            if named is None or named[i] is None:
                out.ids[part.start + i, 1 : 1 + width] = ids_host[i, :width]
                out.values[part.start + i, 1 : 1 + width] = values_host[i, :width]
    for i, wanted in enumerate(named or []):
        if wanted is not None:
            values = logits[i, torch.from_numpy(wanted.astype(np.int64)).to(logits.device)] - total[i]
            out.ids[part.start + i, 1 : 1 + len(wanted)] = wanted
            out.values[part.start + i, 1 : 1 + len(wanted)] = values.numpy(force=True)
