"""ModelFacts: what a checkpoint is, read from its config.json (or GGUF metadata) without transformers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo.config.reader import Reader, positive
from octavo.errors import ConfigError

MAX_LAYERS = 10_000
DTYPES = ("float32", "bfloat16", "float16")
ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh"}

#: What each architecture's configuration means where config.json is silent: the values of Transformers' own classes.
#: A model is one row here, one in ``device.models.registry`` and one file.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"max_position_embeddings": 2048},
    "MistralForCausalLM": {
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
        "windows": "all",
    },
    "Qwen2ForCausalLM": {"max_position_embeddings": 32768, "windows": "late", "qkv_bias": True},
    "Qwen3ForCausalLM": {"max_position_embeddings": 32768, "head_dim": 128, "windows": "late"},
    "Gemma3ForCausalLM": {
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": 131072,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "windows": "pattern",
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 2,
        "eos_token_id": 1,
    },
}
#: Architectures whose text part is one of the above, configured under ``text_config``.
TEXT_PARTS = {"Gemma3ForConditionalGeneration": "Gemma3ForCausalLM"}

ROPE_KINDS = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "factors": ("factors",),
}


@dataclass(frozen=True, kw_only=True)
class RopeFacts:
    """Rotary embedding. ``kind``: default, linear, dynamic, yarn, llama3, or factors (GGUF: a divisor a frequency).

    ``scaling``: the checkpoint's own numbers, among them ``original_max_position_embeddings``, the length that the
    model was trained on before it was stretched.
    """

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

    @classmethod
    def from_config(cls, config: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> "ModelFacts":
        """Facts from the contents of config.json and, where there is one, of generation_config.json.

        Raises ``ConfigError`` that names the value and what is supported.
        """
        return _facts(dict(config), dict(generation or {}))

    @property
    def attention_scale(self) -> float:
        """The factor of attention scores."""
        return self.head_dim**-0.5 if self.scale is None else self.scale

    def window(self, layer: int) -> int | None:
        """Tokens that a layer looks back, itself included; None for all."""
        return self.windows[layer] if self.windows else None

    def layer_rope(self, layer: int) -> RopeFacts:
        """The rotary embedding of a layer."""
        return self.local_rope if self.local_rope is not None and self.window(layer) is not None else self.rope


def architecture(config: Mapping[str, Any]) -> tuple[str, str]:
    """(the name in the file, the decoder that it is here). Raises ``ConfigError`` where it is none of ours."""
    names = config.get("architectures") or []
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise ConfigError(f"config.json names no architecture; supported: {_known()}")
    name = names[0]
    ours = TEXT_PARTS.get(name, name)
    if ours not in ARCHITECTURES:
        # no nearest name: an architecture is never misspelt, and one with a similar name is another model
        raise ConfigError(f"architecture {name!r} is not supported; supported: {_known()}")
    return name, ours


def _known() -> str:
    return ", ".join([*ARCHITECTURES, *TEXT_PARTS])


def _facts(config: dict, generation: dict) -> ModelFacts:
    name, ours = architecture(config)
    values = config.get("text_config") if name in TEXT_PARTS else config
    if not isinstance(values, dict):
        raise ConfigError(f"config.json of {name} has no text_config")
    read = Reader(values, ARCHITECTURES[ours])
    outer = Reader(config, {})
    _refuse(config, values, ours)
    heads, hidden, layers = (
        read.whole("num_attention_heads"),
        read.whole("hidden_size"),
        read.whole("num_hidden_layers"),
    )
    if layers > MAX_LAYERS:
        raise ConfigError(f"config.json: num_hidden_layers must be at most {MAX_LAYERS}, got {layers}")
    kv_heads = read.whole("num_key_value_heads", heads)
    if heads % kv_heads:
        raise ConfigError(
            f"config.json: num_attention_heads ({heads}) is no multiple of num_key_value_heads ({kv_heads})"
        )
    if read.get("head_dim") is None and hidden % heads:
        raise ConfigError(f"config.json: hidden_size ({hidden}) is no multiple of num_attention_heads ({heads})")
    positions = read.whole("max_position_embeddings")
    rope, local_rope = _ropes(read, positions)
    gemma = ours == "Gemma3ForCausalLM"
    act = read.get("hidden_activation", "hidden_act") or "silu"
    if not isinstance(act, str) or act not in ACTIVATIONS:
        raise ConfigError(f"config.json: hidden_act {act!r} is not supported; supported: {', '.join(ACTIVATIONS)}")
    bias = read.flag("attention_bias")
    tied = outer.flag("tie_word_embeddings") if config.get("tie_word_embeddings") is not None else None
    scalar = read.real("query_pre_attn_scalar")
    eos = (*Reader(generation, {}).ids("eos_token_id"), *(outer.ids("eos_token_id") or read.ids("eos_token_id")))
    bos = read.ids("bos_token_id")
    return ModelFacts(
        architecture=ours,
        vocab=read.whole("vocab_size"),
        hidden=hidden,
        layers=layers,
        q_heads=heads,
        kv_heads=kv_heads,
        head_dim=read.whole("head_dim", hidden // heads),
        ffn=read.whole("intermediate_size"),
        max_positions=positions if gemma else _stretched(positions, rope),
        norm_eps=read.real("rms_norm_eps", default=1e-6) or 1e-6,
        act=ACTIVATIONS[act],
        tied=read.flag("tie_word_embeddings") if tied is None else tied,
        qkv_bias=bias or read.flag("qkv_bias"),
        out_bias=bias,
        mlp_bias=read.flag("mlp_bias"),
        scale=None if scalar is None else scalar**-0.5,
        embed_scale=hidden**0.5 if gemma else 1.0,
        logit_softcap=read.real("final_logit_softcapping"),
        windows=_windows(read, layers),
        rope=rope,
        local_rope=local_rope,
        bos=bos[0] if bos else None,
        eos=tuple(dict.fromkeys(eos)),
        dtype=_dtype(outer.get("dtype", "torch_dtype") or read.get("dtype", "torch_dtype") or "float32"),
        raw=config,
    )


def _refuse(config: dict, values: dict, ours: str) -> None:
    """What would change the result and is not done here is an error, never ignored."""
    quantization = config.get("quantization_config") or values.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        raise ConfigError(
            f"the checkpoint is quantised with {method!r}, which is not supported; "
            "supported: unquantised safetensors, and every GGUF file of Q4_0 to Q8_0 and Q2_K to Q6_K"
        )
    if values.get("use_bidirectional_attention"):
        raise ConfigError(
            f"config.json: use_bidirectional_attention is not supported for {ours}: only causal decoders are"
        )
    # Gemma 3 has the key, but neither its reference nor Transformers does anything with it.
    for key in ("clip_qkv", "attn_logit_softcapping"):
        if values.get(key) is not None:
            raise ConfigError(f"config.json: {key} {values[key]!r} is not supported for {ours}; supported: null")


def _dtype(name: Any) -> str:
    name = str(name).removeprefix("torch.")
    if name not in DTYPES:
        raise ConfigError(f"config.json: dtype {name!r} is not supported; supported: {', '.join(DTYPES)}")
    return name


def _windows(read: Reader, layers: int) -> tuple[int | None, ...]:
    rule = read.defaults.get("windows")
    # A null in the file means "no window"; only where the key is absent does the architecture's default count.
    window = read.values["sliding_window"] if "sliding_window" in read.values else read.defaults.get("sliding_window")
    if rule == "late" and not read.flag("use_sliding_window"):
        window = None
    if rule is None or window is None:
        return (None,) * layers
    window = Reader({"sliding_window": window}, {}).whole("sliding_window")
    types = read.get("layer_types")
    if types is not None:
        if not isinstance(types, list) or len(types) != layers:
            raise ConfigError(f"config.json: layer_types must be a list of {layers} entries")
        unknown = sorted({str(kind) for kind in types} - {"full_attention", "sliding_attention"})
        if unknown:
            raise ConfigError(
                f"config.json: layer_types holds {unknown[0]!r}; supported: full_attention, sliding_attention"
            )
        return tuple(window if kind == "sliding_attention" else None for kind in types)
    if rule == "pattern":
        every = read.whole("sliding_window_pattern")
        return tuple(window if (i + 1) % every else None for i in range(layers))
    first = read.values.get("max_window_layers", 28) if rule == "late" else 0
    if isinstance(first, bool) or not isinstance(first, int):
        raise ConfigError(f"config.json: max_window_layers must be a whole number, got {first!r}")
    return tuple(window if i >= first else None for i in range(layers))


def _ropes(read: Reader, positions: int) -> tuple[RopeFacts, RopeFacts | None]:
    """(rope of full layers, rope of windowed layers where it differs), from the old and the new form of the keys."""
    theta = read.real("rope_theta", default=10000.0) or 10000.0
    local = read.real("rope_local_base_freq")
    new, old = read.values.get("rope_parameters"), read.values.get("rope_scaling")
    for key, value in (("rope_parameters", new), ("rope_scaling", old)):
        if value is not None and not isinstance(value, dict):
            raise ConfigError(f"config.json: {key} must be an object, got {value!r}")
    given = old or new or {}
    if "full_attention" in given or "sliding_attention" in given:
        full = _rope(given.get("full_attention") or {}, theta, positions, read)
        return full, _rope(given.get("sliding_attention") or {}, local or theta, positions, read)
    full = _rope(given, theta, positions, read)
    return full, None if local is None else RopeFacts(theta=local)


def _rope(given: dict, theta: float, positions: int, read: Reader) -> RopeFacts:
    kind = given.get("rope_type", given.get("type", "default")) or "default"
    if not isinstance(kind, str) or kind not in ROPE_KINDS:
        raise ConfigError(f"config.json: rope type {kind!r} is not supported; supported: {', '.join(ROPE_KINDS)}")
    partial = given.get("partial_rotary_factor", read.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise ConfigError(f"config.json: partial_rotary_factor {partial!r} is not supported; supported: 1.0")
    theta = positive("rope_theta", given.get("rope_theta", theta))
    if kind == "default":
        return RopeFacts(theta=theta)
    scaling = {
        key: value
        for key, value in given.items()
        if key not in ("rope_type", "type", "rope_theta") and value is not None
    }
    original = scaling.get("original_max_position_embeddings", read.get("original_max_position_embeddings"))
    # Dynamic scaling counts from max_position_embeddings, whatever the file calls original: Transformers does.
    scaling["original_max_position_embeddings"] = positions if original is None or kind == "dynamic" else original
    if kind == "yarn" and "factor" not in scaling:
        scaling["factor"] = positions / scaling["original_max_position_embeddings"]
    for key in ROPE_KINDS[kind]:
        if key not in scaling:
            raise ConfigError(f"config.json: rope type {kind!r} needs {key}")
    for key, value in scaling.items():
        if key == "factors":
            if not isinstance(value, (list, tuple)):
                raise ConfigError(f"config.json: rope scaling factors must be a list of numbers, got {value!r}")
            for factor in value:
                positive("rope scaling factors", factor)
        elif key not in ("truncate", "finetuned"):
            positive(f"rope scaling {key}", value)
    return RopeFacts(theta=theta, kind=kind, scaling=scaling)


def _stretched(positions: int, rope: RopeFacts) -> int:
    """The longest sequence: files state either the trained length or the stretched one; the larger of both is meant."""
    if rope.kind not in ("linear", "dynamic", "yarn"):
        return positions
    return max(positions, int(rope.scaling["original_max_position_embeddings"] * rope.scaling["factor"]))
