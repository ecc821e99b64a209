"""The one place that launches Triton kernels, and how they follow one another on a device.

Programmatic dependent launch (PDL) lets a kernel begin while the one before it ends. Every kernel here has a constexpr
``PDL`` and calls ``triton.pdl.release`` first and ``triton.pdl.await_inputs`` before it reads what the step writes:

    PLAIN   a kernel of its own, after all that went before: a barrier
    AFTER   the next kernel may start once this one's inputs are there
    FIRST   the next kernel may start at once. It may then run beside several before it, so that what a kernel reads
            before it waits must be older than the nearest launch ahead of it that is not FIRST: weights, lengths and
            tables of the step, pages of earlier steps
    LATE    the next kernel may start once this one has done most of its work, where it calls ``triton.pdl.yield_late``:
            a kernel that is there early takes room, and takes it where there happens to be some

Triton is imported by the files under ``kernels.triton`` alone, which are imported when a tensor is on a GPU.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

#: What stands in for the device while launches are noted and not done: kernel (None: the library's product), grid,
#: arguments, ``pdl``, options.
Taker = Callable[[Any, tuple[int, ...], tuple[Any, ...], int, dict[str, Any]], None]

PLAIN, AFTER, FIRST, LATE = 0, 1, 2, 3
_taker: Taker | None = None


@contextmanager
def taken(taker: Taker) -> Iterator[None]:
    """Within it every launch goes to ``taker`` and nothing runs, whatever device the tensors are on: what results hold
    is undefined."""
    global _taker
    before, _taker = _taker, taker
    try:
        yield
    finally:
        _taker = before


def has_kernels(x: Tensor) -> bool:
    """Whether ``x`` is where the Triton kernels run."""
    return x.is_cuda or _taker is not None


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None, add: Tensor | None = None) -> Tensor:
    """x [T, K] @ weight [N, K].T by the vendor's library (cuBLAS), plus ``bias`` [N], or into ``add`` [T, N]."""
    if _taker is not None:
        _taker(None, (len(x), *weight.shape), (), PLAIN, {})
        return x.new_empty(len(x), len(weight)) if add is None else add
    if add is None:
        return torch.nn.functional.linear(x, weight, bias)
    return add.addmm_(x, weight.t())  # elsewhere torch copies ``add`` first


@lru_cache
def can_overlap() -> bool:
    """Whether the device has PDL: compute capability 9.0 and up."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return False  # Triton's interpreter runs kernels on CPU tensors, for tests
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, pdl: int = PLAIN, **options: Any) -> None:
    """Run a Triton kernel on the current stream. ``options``: its constexprs, ``num_warps``, ``num_stages``."""
    if _taker is not None:
        _taker(kernel, grid, args, pdl, options)
    elif pdl and can_overlap():
        kernel[grid](*args, PDL=pdl, launch_pdl=True, **options)
    else:
        kernel[grid](*args, PDL=0, **options)


def exact(dtype: torch.dtype) -> str:
    """``tl.dot``'s precision for operands of ``dtype``: float32 is not rounded to tf32."""
    return "ieee" if dtype == torch.float32 else "tf32"
