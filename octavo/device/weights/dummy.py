"""Weights from config.json alone, for measuring: random, the same for a seed, and quick even for a large model."""

import torch
from torch import Tensor

from octavo.device.weights.source import Stored

_BLOCK = (1 << 20) + 7


class DummySource:
    """``shapes``: of every tensor that the model wants. Matrices are cut from one random block, each elsewhere."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], seed: int):
        self.tensors = {name: Stored(shape, "dummy", name) for name, shape in shapes.items()}
        generator = torch.Generator().manual_seed(seed)
        self._block = torch.empty(_BLOCK).normal_(0.0, 0.02, generator=generator)
        self._start = 0

    def read(self, name: str, out: Tensor) -> None:
        flat = out.view(-1)
        if name.endswith("norm.weight"):
            flat.fill_(1.0)
            return
        block = self._block.to(flat.dtype).to(flat.device)
        at = 0
        while at < flat.numel():
            count = min(_BLOCK - self._start, flat.numel() - at)
            flat[at : at + count].copy_(block[self._start : self._start + count])
            self._start = (self._start + count) % _BLOCK
            at += count

    def close(self) -> None:
        pass
