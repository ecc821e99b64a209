"""Weights that leave the device for a while and come back to where they were."""

import torch
from torch import Tensor, UntypedStorage

from octavo.device.models.base import CausalLM
from octavo.device.worker.memory import tensors


class Away:
    """The weights of ``model`` in host memory; theirs on the device is given back. Tensors stay the objects that they
    are. Those that are in host memory already are left alone: on a CPU that is all of them."""

    def __init__(self, model: CausalLM):
        self._kept: list[tuple[UntypedStorage, Tensor]] = []
        seen: set[int] = set()
        for tensor in tensors(model):
            if tensor.device.type == "cpu":
                continue
            storage = tensor.untyped_storage()
            if storage.data_ptr() in seen or not storage.nbytes():
                continue
            seen.add(storage.data_ptr())
            self._kept.append((storage, _bytes(storage).cpu()))
        for storage, _ in self._kept:
            storage.resize_(0)

    def back(self) -> None:
        """Raises ``torch.OutOfMemoryError`` where the device has no room any more; it may be tried again."""
        while self._kept:
            storage, host = self._kept[-1]
            storage.resize_(host.numel())
            _bytes(storage).copy_(host)
            self._kept.pop()


def _bytes(storage: UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
