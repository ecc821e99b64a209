"""Staged writes: values to places of a flat tensor."""

from torch import Tensor


def scatter(flat: Tensor, offsets: Tensor, values: Tensor) -> None:
    """``flat[offsets[i]] = values[i]``; offsets int64 [M], each at most once."""
    scatter_torch(flat, offsets, values)


def scatter_torch(flat: Tensor, offsets: Tensor, values: Tensor) -> None:
    flat[offsets] = values
