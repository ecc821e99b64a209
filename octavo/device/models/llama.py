"""Llama: pre-norm, rotary grouped-query attention, gated MLP. https://arxiv.org/abs/2307.09288"""

from torch import Tensor

from octavo.config.facts import ModelFacts
from octavo.device.layers.kit import Kit
from octavo.device.models.base import CausalLM


class Layer:
    """One decoder layer."""

    def __init__(self, f: ModelFacts, kit: Kit, index: int):
        a, m = kit.at("self_attn"), kit.at("mlp")
        q, kv = f.q_heads * f.head_dim, f.kv_heads * f.head_dim
        norm = kit.norm("input_layernorm", f.hidden)
        self.qkv = a.fused(["q_proj", "k_proj", "v_proj"], f.hidden, [q, kv, kv], bias=f.qkv_bias, norm=norm)
        self.attend = a.attention(
            f.q_heads,
            f.kv_heads,
            f.head_dim,
            scale=f.attention_scale,
            window=f.window(index),
            rope=kit.rope(f.layer_rope(index), f.head_dim),
            **self.extras(f, a),
        )
        self.out = a.row("o_proj", q, f.hidden, bias=f.out_bias)
        norm = kit.norm("post_attention_layernorm", f.hidden)
        self.up = m.fused(["gate_proj", "up_proj"], f.hidden, [f.ffn] * 2, bias=f.mlp_bias, norm=norm, act=f.act)
        self.down = m.row("down_proj", f.ffn, f.hidden, bias=f.mlp_bias)

    def extras(self, f: ModelFacts, a: Kit) -> dict:
        """What a relative's attention has besides."""
        return {}

    def __call__(self, x: Tensor) -> Tensor:
        """The residual stream [T, H] -> [T, H]."""
        x = self.out(self.attend(self.qkv(x)), add=x)
        return self.down(self.up(x), add=x)


class Llama(CausalLM):
    """LlamaForCausalLM."""

    Layer = Layer
