"""GGUF metadata as the config.json that the checkpoint would have had, so that ``ModelFacts`` has one reader."""

from typing import Any

from octavo.common.gguf import GGUFFile, floats
from octavo.errors import CheckpointError, ConfigError

#: GGUF's architecture -> Hugging Face's. Mistral's files say llama.
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}
#: Layers of the one Gemma 3 whose scores are scaled by hidden / heads instead of the head size (as llama.cpp decides).
_GEMMA3_27B_LAYERS = 62


def config(file: GGUFFile) -> dict[str, Any]:
    """An HF-like configuration. Raises ``CheckpointError`` that names the key which is missing."""
    meta = file.metadata
    arch = meta.get("general.architecture")
    if arch not in ARCHITECTURES:
        raise ConfigError(
            f"{file.path}: GGUF architecture {arch!r} is not supported; supported: {', '.join(ARCHITECTURES)}"
        )

    def need(key: str) -> Any:
        value = meta.get(f"{arch}.{key}")
        if value is None:
            raise CheckpointError(f"{file.path}: the metadata has no {arch}.{key}")
        return value

    def maybe(key: str) -> Any:
        return meta.get(f"{arch}.{key}")

    if (pieces := meta.get("split.count", 1)) > 1:
        raise ConfigError(
            f"{file.path}: one of {pieces} pieces of a split model; join them with llama-gguf-split --merge"
        )
    layers, hidden, heads = need("block_count"), need("embedding_length"), need("attention.head_count")
    if f"blk.{layers - 1}.attn_norm.weight" not in file.tensors:
        raise CheckpointError(
            f"{file.path}: tensor 'blk.{layers - 1}.attn_norm.weight' is missing; {arch}.block_count is {layers}"
        )
    head_dim = maybe("attention.key_length") or maybe("rope.dimension_count") or hidden // heads
    if maybe("attention.value_length") not in (None, head_dim):
        raise ConfigError(f"{file.path}: {arch}.attention.value_length differs from key_length, which is not supported")
    out: dict[str, Any] = {
        "architectures": [ARCHITECTURES[arch]],
        "model_type": arch,
        "vocab_size": _vocabulary(file),
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": maybe("attention.head_count_kv") or heads,
        "head_dim": head_dim,
        "intermediate_size": need("feed_forward_length"),
        "max_position_embeddings": need("context_length"),
        "rms_norm_eps": need("attention.layer_norm_rms_epsilon"),
        "rope_theta": maybe("rope.freq_base") or (1_000_000.0 if arch == "gemma3" else 10_000.0),
        "rope_scaling": _scaling(file, arch),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_output.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in file.tensors,
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _ends(meta),
        "dtype": _dtype(file),
    }
    if arch == "gemma3":
        out |= {
            "sliding_window": need("attention.sliding_window"),
            "sliding_window_pattern": maybe("attention.sliding_window_pattern") or 6,
            "rope_local_base_freq": maybe("rope.freq_base_swa") or maybe("rope.local.freq_base") or 10_000.0,
            "query_pre_attn_scalar": hidden // heads if layers == _GEMMA3_27B_LAYERS else head_dim,
            "final_logit_softcapping": maybe("final_logit_softcapping"),
        }
    elif maybe("attention.sliding_window"):
        raise ConfigError(f"{file.path}: {arch}.attention.sliding_window is not supported for {arch} in a GGUF file")
    return out


def _vocabulary(file: GGUFFile) -> int:
    """Rows of the embedding: what the logits have. The tokenizer's list may be shorter, never longer."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise CheckpointError(f"{file.path}: tensor 'token_embd.weight' is missing")
    tokens = file.metadata.get("tokenizer.ggml.tokens") or []
    if len(tokens) > embedding.shape[0]:
        raise CheckpointError(
            f"{file.path}: the tokenizer has {len(tokens)} tokens, "
            f"but 'token_embd.weight' only {embedding.shape[0]} rows"
        )
    return embedding.shape[0]


def _scaling(file: GGUFFile, arch: str) -> dict[str, Any] | None:
    meta = file.metadata
    if "rope_freqs.weight" in file.tensors:
        return {"rope_type": "factors", "factors": floats(file, "rope_freqs.weight")}
    kind = meta.get(f"{arch}.rope.scaling.type", "none")
    factor = meta.get(f"{arch}.rope.scaling.factor", meta.get(f"{arch}.rope.scale_linear"))
    if kind == "none" or not factor:
        return None
    scaling = {"rope_type": kind, "factor": factor}
    for ours, key in (
        ("original_max_position_embeddings", "original_context_length"),
        ("attention_factor", "attn_factor"),
        ("beta_fast", "yarn_beta_fast"),
        ("beta_slow", "yarn_beta_slow"),
    ):
        value = meta.get(f"{arch}.rope.scaling.{key}")
        if value:
            scaling[ours] = value
    return scaling


def _ends(meta: dict[str, Any]) -> list[int]:
    found = [meta.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    return list(dict.fromkeys(token for token in found if token is not None))


def _dtype(file: GGUFFile) -> str:
    """What the matrices were before quantisation is not recorded; bfloat16 holds the range of any of them."""
    kinds = {tensor.kind for tensor in file.tensors.values() if len(tensor.shape) > 1}
    return {frozenset({"F32"}): "float32", frozenset({"F16"}): "float16"}.get(frozenset(kinds), "bfloat16")
