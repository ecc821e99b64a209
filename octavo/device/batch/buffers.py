"""The only two ways to the device in a step: HostMirror (the host's array is the truth) and StagedTensor (the device's
tensor is the truth; the host stages changes). Columns packs what a plan says into one transfer.

Nothing here waits for the device: what is sent lies in pinned memory from torch's pool, which lends a block again only
when the copy out of it is done. So that pool is the ring that steps in flight need, as deep as they make it.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from octavo.device.kernels.scatter import scatter

_TORCH = {
    np.dtype(np.bool_): torch.bool,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
}


def shared(device: torch.device) -> bool:
    """Whether host and device have one memory."""
    return device.type == "cpu"


def pinned(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Host memory that the device copies from and to while the host goes on."""
    return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)


def ship(array: np.ndarray, device: torch.device) -> Tensor:
    """A fresh host array on the device, without waiting; on a CPU its own memory."""
    if shared(device):
        return torch.from_numpy(array)
    tensor = torch.empty(array.shape, dtype=_TORCH[array.dtype], device=device)
    send(array, tensor)
    return tensor


def send(array: np.ndarray, tensor: Tensor) -> None:
    """A host array into a device tensor of its shape, by work that is launched from now on."""
    if shared(tensor.device):
        tensor.numpy()[...] = array
        return
    staging = pinned(tensor.shape, tensor.dtype)
    staging.numpy()[...] = array
    tensor.copy_(staging, non_blocking=True)


class HostMirror:
    """A host array that the device can read. Read ``host``; write to what ``edit`` gives, then ``flush``, which sends
    what lies between the first and the last row that was edited. ``device`` is always the same tensor; on a CPU it is
    the same memory as well."""

    def __init__(self, shape: Sequence[int], dtype: type, device: torch.device, fill: float = 0):
        self.host: np.ndarray = np.full(shape, fill, dtype) if fill else np.zeros(shape, dtype)
        self._shared = shared(device)
        self._first, self._stop = len(self.host), 0
        if self._shared:
            self.device = torch.from_numpy(self.host)
        else:
            self.device = torch.full(tuple(shape), fill, dtype=_TORCH[np.dtype(dtype)], device=device)

    def edit(self, row: int | None = None) -> np.ndarray:
        """The host's array, to be written to now: at ``row`` alone, or anywhere."""
        self._first = 0 if row is None else min(self._first, row)
        self._stop = len(self.host) if row is None else max(self._stop, row + 1)
        return self.host

    def flush(self) -> Tensor:
        """The device's tensor, up to date for work that is launched from now on."""
        if self._stop and not self._shared:
            send(self.host[self._first : self._stop], self.device[self._first : self._stop])
        self._first, self._stop = len(self.host), 0
        return self.device


class StagedTensor:
    """A device tensor [R, ...] that kernels write too. The host stages pieces of rows; ``flush`` applies them at once.

    ``lazy``: memory is taken only where rows are touched (a CPU's zero pages).
    """

    def __init__(self, shape: Sequence[int], dtype: type, device: torch.device, lazy: bool = False):
        if device.type == "cpu" and lazy:
            self.tensor = torch.from_numpy(np.zeros(shape, dtype))
        else:
            self.tensor = torch.zeros(tuple(shape), dtype=_TORCH[np.dtype(dtype)], device=device)
        self._dtype = np.dtype(dtype)
        self._width = int(np.prod(shape[1:], dtype=np.int64))
        self._host = self.tensor.view(-1).numpy() if shared(device) else None
        self._offsets: list[np.ndarray] = []
        self._values: list[np.ndarray] = []

    def stage(self, row: int, values, start: int = 0) -> None:
        """Let row ``row`` hold ``values`` (a number or a sequence) from element ``start`` on, after the next flush.

        Of two writes to one element before a flush the later wins.
        """
        data = np.atleast_1d(np.asarray(values, self._dtype))
        first = row * self._width + start
        self._offsets.append(np.arange(first, first + len(data)))
        self._values.append(data)

    def stage_at(self, offsets: np.ndarray, values: np.ndarray) -> None:
        """The same for elements int64[M] of the flat tensor, each of them once."""
        self._offsets.append(offsets)
        self._values.append(np.asarray(values, self._dtype))

    def write(self) -> bool:
        """Apply what is staged where the memory is the host's, and forget it; False where it has to travel."""
        if self._host is None or not self._offsets:
            return not self._offsets
        for offsets, data in zip(self._offsets, self._values, strict=True):
            self._host[offsets] = data
        self._offsets.clear()
        self._values.clear()
        return True

    def take(self) -> tuple[np.ndarray, np.ndarray]:
        """What is staged, as (offsets int64[M], each once, and their values), and forget it."""
        if len(self._offsets) == 1:
            return self._offsets.pop(), self._values.pop()
        offsets, values = np.concatenate(self._offsets), np.concatenate(self._values)
        self._offsets.clear()
        self._values.clear()
        ordered = np.sort(offsets)
        if (ordered[1:] == ordered[:-1]).any():
            # a parallel scatter has no order: the last write of an element is the one
            kept = len(offsets) - 1 - np.unique(offsets[::-1], return_index=True)[1]
            offsets, values = offsets[kept], values[kept]
        return offsets, values

    def flush(self) -> None:
        flush([self])


def flush(tensors: Iterable[StagedTensor]) -> None:
    """Apply what is staged in all of ``tensors``; everything travels in one packed block."""
    staged = [(one.tensor, *one.take()) for one in tensors if not one.write()]
    if not staged:
        return
    parts = ship_all([part for _, offsets, values in staged for part in (offsets, values)], staged[0][0].device)
    for (tensor, _, _), offsets, values in zip(staged, parts[::2], parts[1::2], strict=True):
        scatter(tensor.view(-1), offsets, values)


def ship_all(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Fresh host arrays on the device as they are, by one transfer."""
    if shared(device):
        return [torch.from_numpy(array) for array in arrays]
    sizes = [-(-array.nbytes // 8) * 8 for array in arrays]
    staging = pinned((sum(sizes),), torch.uint8)
    host, at = staging.numpy(), 0
    for array, size in zip(arrays, sizes, strict=True):
        host[at : at + array.nbytes].view(array.dtype)[:] = array
        at += size
    block = torch.empty(len(host), dtype=torch.uint8, device=device)
    block.copy_(staging, non_blocking=True)
    return [
        part[: array.nbytes].view(_TORCH[array.dtype]) for part, array in zip(block.split(sizes), arrays, strict=True)
    ]


class Columns:
    """A plan's integer columns as int64 device tensors, by one transfer."""

    def __init__(self, device: torch.device):
        self._device = device

    def ship(self, *columns: np.ndarray) -> tuple[Tensor, ...]:
        sizes = [len(column) for column in columns]
        if shared(self._device):
            packed = np.empty(sum(sizes), np.int64)
            np.concatenate(columns, out=packed, casting="unsafe")
            return torch.from_numpy(packed).split(sizes)
        staging = pinned((sum(sizes),), torch.int64)
        np.concatenate(columns, out=staging.numpy(), casting="unsafe")
        tensor = torch.empty(len(staging), dtype=torch.int64, device=self._device)
        tensor.copy_(staging, non_blocking=True)
        return tensor.split(sizes)
