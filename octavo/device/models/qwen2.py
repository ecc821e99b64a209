"""Qwen2: Llama with biases on q, k and v and, where asked, windows in the later layers; the facts say both.
https://arxiv.org/abs/2407.10671"""

from octavo.device.models.llama import Llama


class Qwen2(Llama):
    """Qwen2ForCausalLM."""
