"""GGUF files: names mapped to Hugging Face's, quantised blocks expanded piece by piece into the model's dtype."""

from collections.abc import Callable

import torch
from torch import Tensor

from octavo.common import gguf
from octavo.device.weights.dequant import KINDS, dequantise
from octavo.device.weights.source import CHUNK, Stored, copy_rows
from octavo.errors import CheckpointError

_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA = _LAYER | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
#: GGUF architecture -> names inside a layer.
NAMES = {"llama": _LAYER, "qwen2": _LAYER, "qwen3": _LAYER, "gemma3": _GEMMA}
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
#: Read with the metadata: these become the rope table.
_ROPE = "rope_freqs.weight"


class GGUFSource:
    """All tensors of a file."""

    def __init__(self, path: str):
        self.file = gguf.read(path)
        self.arch = self.file.metadata.get("general.architecture")
        self.heads = self.file.metadata.get(f"{self.arch}.attention.head_count")
        self.kv_heads = self.file.metadata.get(f"{self.arch}.attention.head_count_kv") or self.heads
        self.tensors: dict[str, Stored] = {}
        for name, tensor in self.file.tensors.items():
            if name == _ROPE:
                continue
            if tensor.kind not in KINDS:
                raise CheckpointError(
                    f"{path}: tensor {name!r} has type {tensor.kind}, which is not supported; supported: {', '.join(KINDS)}"
                )
            self.tensors[self._name(name)] = Stored(tensor.shape, path, name)

    def read(self, name: str, out: Tensor) -> None:
        stored = self.tensors[name]
        tensor = self.file.tensors[stored.origin]
        rows = tensor.shape[0] if len(tensor.shape) > 1 else 1
        columns = tensor.shape[-1]
        row_bytes = tensor.nbytes // rows
        shuffle = self._shuffle(stored.origin, out)
        step = max(1, CHUNK // columns)
        # A piece of whole heads can be put right on its own.
        unit = out.shape[0] // shuffle[0] if shuffle else 1
        step = rows if len(tensor.shape) == 1 else -(-step // unit) * unit
        with open(stored.file, "rb", buffering=0) as file:
            for start in range(0, rows, step):
                count = min(step, rows - start)
                file.seek(tensor.offset + start * row_bytes)
                raw = torch.empty(count * row_bytes, dtype=torch.uint8)
                if file.readinto(memoryview(raw.numpy())) != raw.numel():
                    raise CheckpointError(
                        f"{stored.file}: tensor {stored.origin!r}: the file ended; it has changed since"
                    )
                values = dequantise(raw, tensor.kind).view(count, columns)
                if len(tensor.shape) == 1:
                    values = values.view(columns, 1)
                if shuffle:
                    values = shuffle[1](values, values.shape[0] // unit)
                if self._less_one(stored.origin):
                    values = values.float() - 1.0
                copy_rows(out, start, values)

    def _name(self, name: str) -> str:
        stem, _, suffix = name.rpartition(".")
        if stem in _TOP:
            return f"{_TOP[stem]}.{suffix}"
        block, number, *rest = [*stem.split("."), "", ""]
        inner = NAMES[self.arch].get(rest[0])
        # A name that no table knows stays as it is, and the loader reports it as left over.
        return f"model.layers.{number}.{inner}.{suffix}" if block == "blk" and inner else name

    def _shuffle(self, origin: str, out: Tensor) -> tuple[int, Callable[[Tensor, int], Tensor]] | None:
        """llama.cpp stores Llama's q and k with the two halves of each head interleaved."""
        if self.arch != "llama":
            return None
        heads = {"attn_q": self.heads, "attn_k": self.kv_heads}.get(origin.rpartition(".")[0].rpartition(".")[2])
        return None if heads is None or out.shape[0] % heads else (heads, _halves)

    def _less_one(self, origin: str) -> bool:
        """llama.cpp stores Gemma's norms with the 1 added that Hugging Face's model adds itself."""
        return self.arch == "gemma3" and origin.endswith("norm.weight")


def _halves(rows: Tensor, heads: int) -> Tensor:
    """[heads * D, K] with rows (0, D/2, 1, D/2 + 1, ...) of each head -> in their own order."""
    size = rows.shape[0] // heads
    return rows.view(heads, size // 2, 2, -1).transpose(1, 2).reshape(rows.shape[0], -1)
