"""The only two ways to the device in a step: HostMirror (the host's array is the truth) and StagedTensor (the device's
tensor is the truth; the host stages changes). Columns packs what a plan says into one transfer.
"""

from collections.abc import Sequence

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


class HostMirror:
    """A host array that the device can read. Write ``host``, then ``flush``; on a CPU both are the same memory.

    Elsewhere ``flush`` copies through a ring of pinned buffers, ``depth`` of them, so that a step in flight keeps what
    it was given.
    """

    def __init__(self, shape: Sequence[int], dtype: type, device: torch.device, fill: float = 0, depth: int = 3):
        self.host: np.ndarray = np.full(shape, fill, dtype) if fill else np.zeros(shape, dtype)
        self._shared = device.type == "cpu"
        if self._shared:
            self.device = torch.from_numpy(self.host)
        else:
            self.device = torch.from_numpy(self.host).to(device)
            self._ring = [torch.empty(tuple(shape), dtype=self.device.dtype, pin_memory=True) for _ in range(depth)]
            self._turn = 0

    def flush(self) -> Tensor:
        """The device's tensor, up to date for work that is launched from now on."""
        if not self._shared:
            staging = self._ring[self._turn]
            self._turn = (self._turn + 1) % len(self._ring)
            staging.numpy()[...] = self.host
            self.device.copy_(staging, non_blocking=True)
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

    def flush(self) -> None:
        if not self._offsets:
            return
        offsets, values = np.concatenate(self._offsets), np.concatenate(self._values)
        if len(self._offsets) > 1:  # the last write of an element: a parallel scatter has no order
            kept = len(offsets) - 1 - np.unique(offsets[::-1], return_index=True)[1]
            offsets, values = offsets[kept], values[kept]
        self._offsets.clear()
        self._values.clear()
        scatter(self.tensor.view(-1), _ship(offsets, self.tensor.device), _ship(values, self.tensor.device))


class Columns:
    """A plan's integer columns as int64 device tensors, by one transfer."""

    def __init__(self, device: torch.device):
        self._device = device

    def ship(self, *columns: np.ndarray) -> tuple[Tensor, ...]:
        packed = np.empty(sum(map(len, columns)), np.int64)
        np.concatenate(columns, out=packed, casting="unsafe")
        return _ship(packed, self._device).split([len(column) for column in columns])


def _ship(array: np.ndarray, device: torch.device) -> Tensor:
    """A fresh host array on the device; on a CPU its own memory."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
