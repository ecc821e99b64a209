"""Keys and values into their pages."""

from torch import Tensor


def store(cache: Tensor, slots: Tensor, values: Tensor) -> None:
    """cache [Hk, slots, D] (a view of pages, a token a slot), slots int64[T], values [T, Hk, D], cast to the cache's
    type. Slot 0 takes what nobody wants."""
    store_torch(cache, slots, values)


def store_torch(cache: Tensor, slots: Tensor, values: Tensor) -> None:
    cache[:, slots] = values.transpose(0, 1).to(cache.dtype)
