"""Variants of Triton kernels, as data: what a kernel is compiled for. They can be listed without running anything
(``listing``), sent to other processes, and compiled there for a GPU that is not here (``warm``), into the same entries
of Triton's cache that a launch looks for.

``worker.variants`` lists those of a model.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from octavo.device.kernels.launch import taken

#: torch dtype -> Triton's name of it.
NAMES = {
    torch.bool: "i1",
    torch.uint8: "u8",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
}
#: Bytes of an address, and factors of an integer, that Triton makes use of.
_ALIGNED = 16


class Pointer(NamedTuple):
    """A tensor argument: Triton's name of its dtype, and whether its address is a multiple of 16."""

    dtype: str
    aligned: bool


class Variant(NamedTuple):
    """A kernel of ``kernels.triton`` (module, name), its positional arguments (pointers, and numbers that stand for all
    of their kind) and its options: constexprs, ``num_warps`` and the like, sorted by name."""

    module: str
    name: str
    args: tuple[Pointer | int | float | bool, ...]
    options: tuple[tuple[str, Any], ...]


def variant(kernel: Any, args: tuple[Any, ...], pdl: int, options: dict[str, Any]) -> Variant:
    """Of a launch on a GPU that has programmatic dependent launch if ``pdl`` is not 0."""
    more = {"PDL": pdl} | ({"launch_pdl": True} if pdl else {})
    made = tuple(sorted((options | more).items()))
    alike = getattr(kernel, "do_not_specialize", None) or ()
    names = kernel.fn.__code__.co_varnames
    given = tuple(_argument(arg, name in alike) for name, arg in zip(names, args, strict=False))
    return Variant(kernel.fn.__module__, kernel.fn.__name__, given, made)


def _argument(value: Any, alike: bool) -> Pointer | int | float | bool:
    """``alike``: a whole number is as good as another."""
    if isinstance(value, Tensor):
        return Pointer(NAMES[value.dtype], value.storage_offset() * value.itemsize % _ALIGNED == 0)
    if isinstance(value, int) and not isinstance(value, bool) and (alike or value != 1):
        wide = 1 << 40 if not -(1 << 31) <= value < 1 << 31 else 0
        return wide + (_ALIGNED if value % _ALIGNED == 0 and not alike else _ALIGNED + 1)
    return 0.0 if isinstance(value, float) else value


@torch.inference_mode()
def blank(args: tuple[Any, ...]) -> None:
    """What a launch that was noted and not done leaves: 0 in whole numbers, since what comes next may use them as
    indexes."""
    for arg in args:
        if isinstance(arg, Tensor) and not arg.is_floating_point():
            arg.zero_()


@contextmanager
def listing(overlap: bool = True) -> Iterator[list[Variant]]:
    """Within it launches are listed, each variant once, in the order of their first launch; nothing runs. ``overlap``:
    whether the GPU that they are for has programmatic dependent launch (compute capability 9.0 and up). Whole numbers
    that a kernel was given are 0 afterwards, since what comes next may use them as indexes."""
    seen: dict[Variant, None] = {}
    found: list[Variant] = []

    def take(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], pdl: int, options: dict[str, Any]) -> None:
        blank(args)
        if kernel is None:
            return
        one = variant(kernel, args, pdl if overlap else 0, options)
        if one not in seen:
            seen[one] = None
            found.append(one)

    with taken(take):
        yield found
