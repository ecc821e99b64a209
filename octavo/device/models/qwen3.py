"""Qwen3: Llama with a norm on each query and key head. https://arxiv.org/abs/2505.09388"""

from octavo.config.facts import ModelFacts
from octavo.device.layers.kit import Kit
from octavo.device.models import llama


class Layer(llama.Layer):
    """One decoder layer."""

    def extras(self, f: ModelFacts, a: Kit) -> dict:
        return {"q_norm": a.norm("q_norm", f.head_dim), "k_norm": a.norm("k_norm", f.head_dim)}


class Qwen3(llama.Llama):
    """Qwen3ForCausalLM."""

    Layer = Layer
