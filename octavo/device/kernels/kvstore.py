"""Keys and values into their pages."""

from torch import Tensor


def store(cache: Tensor, slots: Tensor, values: Tensor) -> None:
    """cache [Hk, pages, page, D], slots int64[T] (page * page size + offset), values [T, Hk, D], cast to the cache's
    type. Slot 0 takes what nobody wants."""
    store_torch(cache, slots, values)


def store_torch(cache: Tensor, slots: Tensor, values: Tensor) -> None:
    values = values.transpose(0, 1).to(cache.dtype)
    if cache.is_contiguous():
        cache.flatten(1, 2).index_copy_(1, slots, values)
    else:
        page = cache.shape[2]
        cache[:, slots // page, slots % page] = values
