"""Tiny random checkpoints, made on the spot: of every architecture and rope kind, as Hugging Face directories
(sharded on demand) and as GGUF files. A seed gives the same numbers in both forms."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Gemma3ForCausalLM",
)
ROPES: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 32},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
}
#: Longest sequence of a tiny model: where a rope kind stretches, it does so from a trained length of 32.
POSITIONS = 128
_SIZES = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": POSITIONS,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "hidden_act": "silu",
}
_OWN: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"model_type": "llama"},
    "MistralForCausalLM": {"model_type": "mistral", "head_dim": 24, "sliding_window": 9},
    "Qwen2ForCausalLM": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 9,
        "max_window_layers": 1,
    },
    "Qwen3ForCausalLM": {"model_type": "qwen3", "head_dim": 24, "attention_bias": False},
    "Gemma3ForCausalLM": {
        "model_type": "gemma3_text",
        "head_dim": 24,
        "query_pre_attn_scalar": 20,
        "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "tie_word_embeddings": True,
        "hidden_activation": "gelu_pytorch_tanh",
    },
}


def config(architecture: str = "LlamaForCausalLM", rope: str = "default", **changes: Any) -> dict[str, Any]:
    """The contents of config.json, as Transformers 5 writes it, with ``changes``."""
    out = {"architectures": [architecture], "dtype": "float32"} | _SIZES | _OWN[architecture]
    parameters = {"rope_type": rope, "rope_theta": 10000.0} | ROPES[rope]
    if rope == "dynamic":
        out["max_position_embeddings"] = POSITIONS // 4
    if architecture == "Gemma3ForCausalLM":
        local = {"rope_type": "default", "rope_theta": 1000.0}
        out["rope_parameters"] = {"full_attention": parameters, "sliding_attention": local}
    else:
        out["rope_parameters"] = parameters
    return out | changes


def weights(config: dict[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """Random weights of every name that the configuration implies, float32."""
    generator = torch.Generator().manual_seed(seed)
    kind = config["architectures"][0]
    hidden, ffn, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads = config["num_attention_heads"]
    size = config.get("head_dim") or hidden // heads
    q, kv = heads * size, config["num_key_value_heads"] * size
    gemma = kind == "Gemma3ForCausalLM"
    out: dict[str, Tensor] = {}

    def matrix(name: str, rows: int, columns: int, bias: bool = False) -> None:
        out[f"{name}.weight"] = torch.randn(rows, columns, generator=generator) * (1.5 / math.sqrt(columns))
        if bias:
            out[f"{name}.bias"] = torch.randn(rows, generator=generator) * 0.2

    def norm(name: str, width: int = hidden) -> None:
        spread = torch.randn(width, generator=generator) * 0.2
        out[f"{name}.weight"] = spread if gemma else 1.0 + spread

    matrix("model.embed_tokens", vocab, hidden)
    bias = bool(config.get("attention_bias"))
    mlp_bias = bool(config.get("mlp_bias"))
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}"
        norm(f"{at}.input_layernorm")
        for name, rows in (("q_proj", q), ("k_proj", kv), ("v_proj", kv)):
            matrix(f"{at}.self_attn.{name}", rows, hidden, bias or kind == "Qwen2ForCausalLM")
        matrix(f"{at}.self_attn.o_proj", hidden, q, bias)
        if gemma or kind == "Qwen3ForCausalLM":
            norm(f"{at}.self_attn.q_norm", size)
            norm(f"{at}.self_attn.k_norm", size)
        norm(f"{at}.post_attention_layernorm")
        if gemma:
            norm(f"{at}.pre_feedforward_layernorm")
            norm(f"{at}.post_feedforward_layernorm")
        matrix(f"{at}.mlp.gate_proj", ffn, hidden, mlp_bias)
        matrix(f"{at}.mlp.up_proj", ffn, hidden, mlp_bias)
        matrix(f"{at}.mlp.down_proj", hidden, ffn, mlp_bias)
    norm("model.norm")
    if not config["tie_word_embeddings"]:
        matrix("lm_head", vocab, hidden)
    return out


def write_hf(
    folder: str | Path,
    architecture: str = "LlamaForCausalLM",
    rope: str = "default",
    *,
    shards: int = 1,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    generation: dict[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """Write config.json and the weights, in ``shards`` files with an index where it is more than one."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    settings = config(architecture, rope, **changes) | {"dtype": str(dtype).removeprefix("torch.")}
    (folder / "config.json").write_text(json.dumps(settings, indent=1))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    write_safetensors(folder, {k: v.to(dtype) for k, v in weights(settings, seed).items()}, shards)
    return folder


def write_safetensors(folder: Path, tensors: dict[str, Tensor], shards: int = 1) -> None:
    """Write model.safetensors, or ``shards`` files and their index."""
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return
    names = list(tensors)
    where: dict[str, str] = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        mine = names[i::shards]
        save_file({name: tensors[name].contiguous() for name in mine}, folder / file, {"format": "pt"})
        where |= dict.fromkeys(mine, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


#: Hugging Face's name inside a layer -> GGUF's.
_GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GGUF_GEMMA = _GGUF_NAMES | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_GGUF_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_GGUF_ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma3ForCausalLM": "gemma3",
}
#: Where the float16 factors of a block lie: of random bytes only these must be chosen with care.
_FACTORS = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


def write_gguf(
    path: str | Path,
    architecture: str = "LlamaForCausalLM",
    rope: str = "default",
    *,
    kind: str = "F32",
    seed: int = 0,
    metadata: dict[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """Write a GGUF file with the numbers of ``write_hf``, matrices as ``kind``; K types get random blocks instead,
    since the ``gguf`` package cannot make them. ``metadata``: further keys (a tokenizer's, for one).

    Windows are those that the format can say: none but Gemma's. Rows must be multiples of 32, or 256 for K types.
    """
    import gguf

    path = Path(path)
    settings = config(architecture, rope, **changes)
    arch = _GGUF_ARCHITECTURES[architecture]
    writer = gguf.GGUFWriter(path, arch)
    _describe(writer, arch, settings)
    for key, value in (metadata or {}).items():
        _put(writer, key, value)
    generator = np.random.default_rng(seed)
    for name, tensor in weights(settings, seed).items():
        data, theirs = _converted(name, tensor, arch, settings)
        number = gguf.GGMLQuantizationType[kind if data.ndim > 1 else "F32"]
        if kind in _FACTORS and data.ndim > 1:
            blocks = _random_blocks(generator, kind, data.size // 256)
            writer.add_tensor(theirs, blocks.reshape(data.shape[0], -1), raw_dtype=number)
        else:
            writer.add_tensor(theirs, gguf.quantize(data, number), raw_dtype=number)
    if rope == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_divisors(settings))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _describe(writer: Any, arch: str, settings: dict[str, Any]) -> None:
    size = settings.get("head_dim") or settings["hidden_size"] // settings["num_attention_heads"]
    writer.add_context_length(settings["max_position_embeddings"])
    writer.add_embedding_length(settings["hidden_size"])
    writer.add_block_count(settings["num_hidden_layers"])
    writer.add_feed_forward_length(settings["intermediate_size"])
    writer.add_head_count(settings["num_attention_heads"])
    writer.add_head_count_kv(settings["num_key_value_heads"])
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_layer_norm_rms_eps(settings["rms_norm_eps"])
    writer.add_bos_token_id(settings["bos_token_id"])
    writer.add_eos_token_id(settings["eos_token_id"])
    parameters = settings["rope_parameters"]
    parameters = parameters.get("full_attention", parameters)
    writer.add_rope_freq_base(parameters["rope_theta"])
    if parameters["rope_type"] in ("linear", "yarn"):
        import gguf

        writer.add_rope_scaling_type(gguf.RopeScalingType(parameters["rope_type"]))
        writer.add_rope_scaling_factor(parameters["factor"])
        if parameters["rope_type"] == "yarn":
            writer.add_rope_scaling_orig_ctx_len(parameters["original_max_position_embeddings"])
    if arch == "gemma3":
        writer.add_sliding_window(settings["sliding_window"])
        every = settings["layer_types"].index("full_attention") + 1
        _put(writer, "gemma3.attention.sliding_window_pattern", every)
        _put(writer, "gemma3.rope.freq_base_swa", settings["rope_parameters"]["sliding_attention"]["rope_theta"])


def _put(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    else:
        writer.add_float32(key, value)


def _converted(name: str, tensor: Tensor, arch: str, settings: dict[str, Any]) -> tuple[np.ndarray, str]:
    """What llama.cpp's converter makes of a tensor: (numbers, name)."""
    stem, _, suffix = name.rpartition(".")
    if stem in _GGUF_TOP:
        theirs = f"{_GGUF_TOP[stem]}.{suffix}"
    else:
        _, _, layer, inner = stem.split(".", 3)
        theirs = f"blk.{layer}.{(_GGUF_GEMMA if arch == 'gemma3' else _GGUF_NAMES)[inner]}.{suffix}"
    if arch == "gemma3" and name.endswith("norm.weight"):
        tensor = tensor + 1.0
    if arch == "llama" and stem.endswith(("q_proj", "k_proj")):
        heads = settings["num_attention_heads" if stem.endswith("q_proj") else "num_key_value_heads"]
        tensor = tensor.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
    return tensor.contiguous().numpy(), theirs


def _random_blocks(generator: np.random.Generator, kind: str, count: int) -> np.ndarray:
    import gguf

    _, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    blocks = generator.integers(0, 256, (count, size), dtype=np.uint8)
    for at in _FACTORS[kind]:
        factors = (generator.normal(size=(count, 1)) * 1e-3).astype(np.float16)
        blocks[:, at : at + 2] = factors.view(np.uint8)
    return blocks


def _llama3_divisors(settings: dict[str, Any]) -> np.ndarray:
    """llama.cpp's rope_freqs: what each frequency is divided by."""
    given = settings["rope_parameters"]
    size = settings.get("head_dim") or settings["hidden_size"] // settings["num_attention_heads"]
    waves = 2 * math.pi * given["rope_theta"] ** (np.arange(0, size, 2) / size)
    original, low, high = (
        given[key] for key in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
    )
    smooth = np.clip((original / waves - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / given["factor"] + smooth)).astype(np.float32)
