"""ModelFacts: what a checkpoint is, read from its config.json (or GGUF metadata) without transformers."""

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class RopeFacts:
    """Rotary embedding. ``kind``: default, linear, dynamic, yarn or llama3; ``scaling``: the checkpoint's own numbers."""

    theta: float = 10000.0
    kind: str = "default"
    scaling: dict = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Sizes and switches of a decoder. ``windows[i]``: tokens that layer i looks back, None for all; ``rope`` of layers
    that look at everything, ``local_rope`` of windowed layers where it differs. ``eos``: end-of-sequence ids.
    ``dtype``: of the checkpoint. ``raw``: the config as it is in the file."""

    architecture: str
    vocab: int
    hidden: int
    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    max_positions: int
    norm_eps: float = 1e-6
    act: str = "silu"
    tied: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    scale: float | None = None
    embed_scale: float = 1.0
    attn_softcap: float | None = None
    logit_softcap: float | None = None
    windows: tuple[int | None, ...] = ()
    rope: RopeFacts = RopeFacts()
    local_rope: RopeFacts | None = None
    bos: int | None = None
    eos: tuple[int, ...] = ()
    dtype: str = "bfloat16"
    raw: dict = field(default_factory=dict, repr=False)
