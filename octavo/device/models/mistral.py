"""Mistral: Llama with a sliding window, which the facts tell each layer. https://arxiv.org/abs/2310.06825"""

from octavo.device.models.llama import Llama


class Mistral(Llama):
    """MistralForCausalLM."""
