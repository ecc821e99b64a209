"""A linear with its joints on a GPU: the norm before it, bias, gated activation or addition into the residual stream.
One kernel where rows are few; cuBLAS between other kernels where they are many.

The residual stream carries what the next norm needs: a linear that adds into it leaves the rows' sums of squares with
its result (``with_squares``), so that no kernel reads a row twice.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from octavo.common.math import cdiv, next_power_of_two
from octavo.device.kernels import tuned
from octavo.device.kernels.activation import CODES, gated
from octavo.device.kernels.launch import AFTER, FIRST, exact, launch, product
from octavo.device.kernels.norm import rms_norm

#: Most rows that own kernels multiply.
FEW = tuned.MOST
#: Most rows that they multiply where nothing was measured.
UNMEASURED = 64
#: Most weight rows; a product with more keeps the device busy however it is cut.
WIDE = 1 << 16
#: Programs that fill an H200 (132 multiprocessors).
FULL = 128
_space: dict[torch.device, tuple[Tensor, Tensor]] = {}
#: Numbers that splits may write, and tiles that may have splits.
PARTS, TILES = 1 << 22, 4096


class Tile(NamedTuple):
    """Rows, weight rows and columns of a tile, splits of K, loads in flight, warps; ``ahead``: lines of 128 bytes of
    each weight row that are asked for before the inputs are there (0, or a power of two); ``release``: when the next
    kernel may start (``kernels.launch``)."""

    m: int
    n: int
    k: int
    splits: int
    stages: int
    warps: int
    ahead: int = 0
    release: int = AFTER

    def fits(self, rows: int, n: int, k: int) -> bool:
        """Whether it can multiply so many rows with a weight [n, k]."""
        if k % self.splits:
            return False
        tiles = cdiv(rows, self.m) * cdiv(n, self.n)
        return self.splits == 1 or (self.splits * rows * n <= PARTS and tiles <= TILES)


#: For any number of rows where no row's bits may depend on it: no split of K.
FIXED = Tile(64, 64, 64, 1, 3, 4)


def joint(eps: float | None, act: str | None, add: Tensor | None, bias: Tensor | None) -> str:
    """The word by which ``tuned`` knows what goes with a product."""
    words = "norm" * (eps is not None), act, "add" * (add is not None), "bias" * (bias is not None)
    return "+".join(filter(None, words))


def choose(rows: int, n: int, k: int, joint: str = "") -> Tile | None:
    """For a weight [n, k] and so many rows, the same for all rows of a bucket; None: the library."""
    known, best = tuned.linear(rows, n, k, joint)
    if not known:
        return rule(rows, n, k) if rows <= UNMEASURED else None
    if best is None or not (tile := Tile._make(best)).fits(tuned.bucket(rows), n, k):
        return None
    return tile


def rule(rows: int, n: int, k: int) -> Tile:
    """Where nothing was measured. What was, on an H200 with the shapes of Qwen3-0.6B and 8B: few tiles are split until
    the device is full, and up to 32 rows a split of 512 columns is loaded at once."""
    m = max(16, next_power_of_two(rows))
    tiles = cdiv(n, 32)
    if tiles >= FULL * 3 // 2:
        if m == 64 and tiles >= 4 * FULL:
            return Tile(m, 128, 128, 1, 4, 8)
        if m == 32:
            return Tile(m, 64, 64, 1, 8, 4)
        return Tile(m, 64, 128, 1, 5 if m == 16 else 6, 4)
    if tiles >= FULL * 3 // 4:
        if m == 16 and k >= 4096:
            return Tile(m, 32, 256, 3 if k >= 8192 and k % 768 == 0 else 1, 4, 4)
        return Tile(m, 32, 128, 1, 5 if m == 16 else 6, 4)
    if m <= 32 and k % 512 == 0 and tiles * (k // 512) <= 2 * FULL:
        return Tile(m, 32, 512, k // 512, 1, 4)
    splits = next((s for s in (1, 2, 4, 8) if tiles * s >= FULL and k % (128 * s) == 0), 1)
    return Tile(m, 32, 128, splits, 5, 4)


def squares_of(x: Tensor) -> Tensor:
    """Sums of squares of the rows of x, in parts: float32 [T, parts], as its producer left them or made now."""
    kept = getattr(x, "squares", None)
    if kept is not None:
        return kept
    from octavo.device.kernels.triton import norm as kernels

    out = torch.empty(len(x), 1, dtype=torch.float32, device=x.device)
    width = x.shape[1]
    launch(
        kernels.squares, (len(x),), x, out, x.stride(0), H=width, HP=next_power_of_two(width), pdl=AFTER, num_warps=4
    )
    return out


def with_squares(x: Tensor, squares: Tensor | None) -> Tensor:
    """x with the sums of squares of its rows, which whoever writes to it takes off again (None)."""
    x.squares = squares  # type: ignore[attr-defined]
    return x


def joined(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    eps: float | None = None,
    act: str | None = None,
    add: Tensor | None = None,
    how: Tile | None = None,
) -> Tensor:
    """x [T, K], weight [N, K] -> [T, N], or [T, N / 2] with ``act``, of x normed (``eps``: divided by its root mean
    square, the gain being in the weight), plus ``add`` [T, N], which is used up. ``act`` and ``add`` exclude each
    other. ``how``: the tile for any number of rows; else it is chosen by their number."""
    assert act is None or add is None
    if how is not None:
        return tiled(x, weight, bias, how, eps=eps, act=act, add=add)
    if len(weight) > WIDE:
        return joined_torch(x, weight, bias, eps=eps, act=act, add=add)
    if len(x) == 1:
        return _gemv(x, weight, bias, eps, act, add)
    if len(x) <= FEW and (how := choose(len(x), len(weight), weight.shape[1], joint(eps, act, add, bias))) is not None:
        return tiled(x, weight, bias, how, eps=eps, act=act, add=add)
    return joined_torch(x, weight, bias, eps=eps, act=act, add=add)


def joined_torch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    eps: float | None = None,
    act: str | None = None,
    add: Tensor | None = None,
) -> Tensor:
    if eps is not None:
        x = rms_norm(x, None, eps)
    if add is not None and bias is None:
        return with_squares(product(x, weight, add=add), None)
    y = product(x, weight, bias)
    if act is not None:
        return gated(y, act)
    return y if add is None else y.add_(add)


def _gemv(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float | None, act: str | None, add: Tensor | None
) -> Tensor:
    from octavo.device.kernels.triton import linear as kernels

    rows, inner = weight.shape
    width = rows // 2 if act else rows
    out = x.new_empty(1, width)
    pieces, ahead = _columns(inner)
    # 16 to 64 KiB of weights in registers before the wait
    each = 4 if (inner > 1024 and (act or width < 2048)) or inner > 3072 else 8
    if inner == 3072:
        each = 8
    launch(
        kernels.gemv,
        (cdiv(width, each),),
        x,
        weight,
        x if bias is None else bias,
        x if add is None else add,
        out,
        K=inner,
        N=width,
        R=pieces,
        AHEAD=ahead,
        BN=each,
        NORM=eps is not None,
        ACT=CODES[act],
        BIAS=bias is not None,
        ADD=add is not None,
        EPS=eps or 0.0,
        pdl=FIRST,
        num_warps=each,
    )
    return out


def _columns(inner: int) -> tuple[int, int]:
    """Of a GEMV: R, where 256 R columns are one piece of a weight row, and how many pieces are loaded ahead."""
    for ahead in (1, 3):
        pieces, rest = divmod(inner, 256 * ahead)
        if not rest and 2 <= pieces <= 16 and pieces == next_power_of_two(pieces):
            return pieces, ahead
    return min(16, next_power_of_two(cdiv(inner, 256))), 1


def tiled(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    how: Tile,
    *,
    eps: float | None = None,
    act: str | None = None,
    add: Tensor | None = None,
) -> Tensor:
    """``joined`` by tiles of that kind, which fit."""
    from octavo.device.kernels.triton import linear as kernels

    count, (rows, inner) = len(x), weight.shape
    assert how.fits(count, rows, inner), how
    tiles = cdiv(rows, how.n)
    out = x.new_empty(count, rows // 2 if act else rows)
    before = x if eps is None else squares_of(x)
    after = x if add is None else torch.empty(count, tiles, dtype=torch.float32, device=x.device)
    parts, counters = _workspace(x.device) if how.splits > 1 else (x, x)
    launch(
        kernels.tile,
        (cdiv(count, how.m), tiles, how.splits),
        x,
        weight,
        x if bias is None else bias,
        x if add is None else add,
        before,
        after,
        out,
        parts,
        counters,
        count,
        x.stride(0),
        N=rows,
        K=inner,
        BM=how.m,
        BN=how.n,
        BK=how.k,
        SK=how.splits,
        STAGES=how.stages,
        AHEAD=how.ahead,
        NORM=eps is not None,
        NSQ=1 if eps is None else before.shape[1],
        ACT=CODES[act],
        BIAS=bias is not None,
        ADD=add is not None,
        EPS=eps or 0.0,
        EXACT=exact(x.dtype),
        pdl=how.release,
        num_warps=how.warps,
    )
    return out if add is None else with_squares(out, after)


def _workspace(device: torch.device) -> tuple[Tensor, Tensor]:
    """Partial sums, and counters, which every use leaves at 0."""
    if device not in _space:
        _space[device] = (
            torch.empty(PARTS, dtype=torch.float32, device=device),
            torch.zeros(TILES, dtype=torch.int32, device=device),
        )
    return _space[device]
