"""The one ambient: the step that is running. The runner sets it; layers read it; nothing nests."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from octavo.device.attention.base import AttentionBackend, KVCache, LayerAttention
from octavo.device.batch.batch import InputBatch


@dataclass(frozen=True, eq=False, slots=True)
class Bound:
    """A layer's backend, its cache, and its KV group (the index of its metadata)."""

    backend: AttentionBackend
    cache: KVCache
    group: int


class Step:
    """What layers may know of the running step. ``metas[g]`` is the metadata of KV group g."""

    __slots__ = ("_bound", "_metas", "batch")

    def __init__(self, batch: InputBatch, bound: Mapping[str, Bound], metas: list[Any]):
        self.batch = batch
        self._bound = bound
        self._metas = metas

    @property
    def positions(self) -> Tensor:
        """int64[C, T]."""
        return self.batch.positions

    def attend(self, layer: LayerAttention, qkv: Tensor) -> Tensor:
        """qkv [T, (Hq + 2 Hk) * D] -> [T, Hq * D]: norms, rotary embedding, store and attention of ``layer``."""
        bound = self._bound[layer.name]
        return bound.backend.attend(layer, qkv, bound.cache, self._metas[bound.group])


_running: Step | None = None


def current() -> Step:
    """The running step. Only valid inside a model's forward pass."""
    assert _running is not None, "no step is running"
    return _running


@contextmanager
def running(step: Step) -> Iterator[Step]:
    """Make ``step`` the running one."""
    global _running
    assert _running is None, "a step is already running"
    _running = step
    try:
        yield step
    finally:
        _running = None
