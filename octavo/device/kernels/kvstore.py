"""Keys and values into their pages."""

from torch import Tensor


def store(cache: Tensor, slots: Tensor, rows: Tensor) -> None:
    """cache [pages, page, w], slots int64[T] (page * page size + offset), rows [T, w] in the cache's type: what a token
    keeps, as the backend lays it out. Slot 0 takes what nobody wants."""
    store_torch(cache, slots, rows)


def store_torch(cache: Tensor, slots: Tensor, rows: Tensor) -> None:
    if cache.is_contiguous():
        cache.view(-1, cache.shape[2]).index_put_((slots,), rows)
    else:
        page = cache.shape[1]
        cache.index_put_((slots // page, slots % page), rows)
