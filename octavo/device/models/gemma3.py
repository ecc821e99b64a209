"""Gemma 3, its text part: windowed and full layers mixed, q/k norms, norms after as well as before each half.
https://arxiv.org/abs/2503.19786"""

from torch import Tensor

from octavo.config.facts import ModelFacts
from octavo.device.layers.kit import Kit
from octavo.device.models.base import CausalLM


class Layer:
    """One decoder layer."""

    def __init__(self, f: ModelFacts, kit: Kit, index: int):
        a, m = kit.at("self_attn"), kit.at("mlp")
        q, kv = f.q_heads * f.head_dim, f.kv_heads * f.head_dim

        def norm(at: Kit, name: str, size: int = f.hidden):
            return at.norm(name, size, offset=Gemma3.norm_offset)

        before = norm(kit, "input_layernorm")
        self.qkv = a.fused(["q_proj", "k_proj", "v_proj"], f.hidden, [q, kv, kv], bias=f.qkv_bias, norm=before)
        self.attend = a.attention(
            f.q_heads,
            f.kv_heads,
            f.head_dim,
            scale=f.attention_scale,
            window=f.window(index),
            softcap=f.attn_softcap,
            rope=kit.rope(f.layer_rope(index), f.head_dim),
            q_norm=norm(a, "q_norm", f.head_dim),
            k_norm=norm(a, "k_norm", f.head_dim),
        )
        self.out = a.row("o_proj", q, f.hidden, bias=f.out_bias, post=norm(kit, "post_attention_layernorm"))
        before = norm(kit, "pre_feedforward_layernorm")
        self.up = m.fused(["gate_proj", "up_proj"], f.hidden, [f.ffn] * 2, norm=before, act=f.act)
        self.down = m.row("down_proj", f.ffn, f.hidden, post=norm(kit, "post_feedforward_layernorm"))

    def __call__(self, x: Tensor) -> Tensor:
        """The residual stream [T, H] -> [T, H]."""
        x = self.out(self.attend(self.qkv(x)), add=x)
        return self.down(self.up(x), add=x)


class Gemma3(CausalLM):
    """Gemma3ForCausalLM, and the text part of Gemma3ForConditionalGeneration, whose names come in two forms."""

    Layer = Layer
    norm_offset = 1.0
    renames = (("language_model.", ""), ("model.language_model.", "model."))
    skips = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")
