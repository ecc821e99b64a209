"""Matrix products with a weight [N, K]; on a CPU also with the weight in oneDNN's own layout.

``F.linear`` reorders a bfloat16 weight in every call, which costs more than the product of few rows. A packed weight is
reordered once, in the layout that oneDNN picks for ``_ROWS`` rows, which serves any number of them.
"""

import ctypes
from collections.abc import Callable
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

_ROWS = 32


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [T, K] -> x @ weight.T + bias, [T, N]."""
    return F.linear(x, weight, bias)


def linear_add(x: Tensor, weight: Tensor, add: Tensor) -> Tensor:
    """x [T, K], add [T, N] -> add + x @ weight.T."""
    return torch.addmm(add, x, weight.t())


@lru_cache
def packs(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether weights of this kind are worth packing, and can be."""
    # float16 products gain nothing by it, and float32 ones go to another library.
    if device.type != "cpu" or dtype != torch.bfloat16 or not torch.backends.mkldnn.is_available():
        return False
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def pack(weight: Tensor) -> Tensor:
    """[N, K] -> an opaque tensor for ``packed_linear``; the dense one may go."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS)


def packed_linear(x: Tensor, packed: Tensor, bias: Tensor | None = None) -> Tensor:
    """``linear`` with a packed weight; ``linear`` itself is its twin."""
    return torch.ops.mkldnn._linear_pointwise.default(x, packed, bias, "none", [], "")


def packed_rows(packed: Tensor, weight: Tensor) -> Callable[[Tensor], Tensor] | None:
    """A function int [T] -> rows [T, K] of a packed bfloat16 weight, so that a tied embedding needs no copy of its own.

    oneDNN's layouts are its own affair: those known here (blocks of rows, columns in twos) are tried on rows of the
    dense ``weight``, and None is the answer where none gives them bit for bit.
    """
    rows, columns = weight.shape
    ops = torch.ops.mkldnn
    if not (hasattr(ops, "data_ptr") and hasattr(ops, "_nbytes")) or ops._nbytes(packed) != weight.nbytes:
        return None
    memory = (ctypes.c_char * weight.nbytes).from_address(ops.data_ptr(packed))
    flat = torch.frombuffer(memory, dtype=torch.int32)
    probe = torch.linspace(0, rows - 1, min(rows, 512), dtype=torch.float64).long()
    for block in (64, 48, 32, 16):
        if rows % block or columns % 2:
            continue
        view = flat.view(rows // block, columns // 2, block)

        def take(ids: Tensor, view: Tensor = view, block: int = block, _alive: Tensor = packed) -> Tensor:
            return view[ids // block, :, ids % block].view(torch.bfloat16)

        if torch.equal(take(probe), weight[probe]):
            return take
    return None
