"""Source: named tensors of a checkpoint, read one at a time into memory that the model owns."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

#: Numbers converted at a time: what a source needs besides the weights themselves.
CHUNK = 1 << 18


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor as it lies in a file. ``origin``: its name there, for messages."""

    shape: tuple[int, ...]
    file: str
    origin: str


class Source(Protocol):
    """A checkpoint. Names are those of Hugging Face, whatever the format calls them."""

    tensors: dict[str, Stored]

    def read(self, name: str, out: Tensor) -> None:
        """Write the tensor into ``out`` (its shape, contiguous, any float dtype, any device).

        Raises ``CheckpointError`` naming file and tensor.
        """

    def close(self) -> None:
        """Give back what reading took."""


def bytes_of(out: Tensor) -> Tensor:
    """The bytes of a contiguous CPU tensor, as uint8."""
    return out.view(-1).view(torch.uint8)
