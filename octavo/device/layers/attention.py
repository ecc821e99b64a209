"""Attention as a layer: data for the backend, and the call into the running step."""

from torch import Tensor

from octavo.device.attention.base import LayerAttention
from octavo.device.layers.step import current


class Attention:
    """Takes the packed row of the fused linear; q/k norm, rope, store and attention are the backend's one joint."""

    def __init__(self, layer: LayerAttention):
        self.layer = layer

    def __call__(self, qkv: Tensor) -> Tensor:
        """[T, (Hq + 2 Hk) * D] -> [T, Hq * D]."""
        return current().attend(self.layer, qkv)
