"""GGUF files: names mapped to Hugging Face's, quantised blocks expanded piece by piece into the model's dtype."""

import os
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from octavo.common import gguf, probe
from octavo.device.weights.dequant import KINDS, dequantise
from octavo.device.weights.source import CHUNK, Stored
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
        self.arch: str = self.file.metadata.get("general.architecture", "")
        self.heads = self.file.metadata.get(f"{self.arch}.attention.head_count")
        self.kv_heads = self.file.metadata.get(f"{self.arch}.attention.head_count_kv") or self.heads
        self.tensors: dict[str, Stored] = {}
        self._threads = ThreadPoolExecutor(min(8, probe.cores()), "gguf")
        for name, tensor in self.file.tensors.items():
            if name == _ROPE:
                continue
            if tensor.kind not in KINDS:
                raise CheckpointError(
                    f"{path}: tensor {name!r} has type {tensor.kind}, which is not supported; "
                    f"supported: {', '.join(KINDS)}"
                )
            self.tensors[self._name(name)] = Stored(tensor.shape, path, name)

    def read(self, name: str, out: Tensor) -> None:
        stored = self.tensors[name]
        tensor = self.file.tensors[stored.origin]
        heads = self._heads(stored.origin)
        # A vector is one row, unless its numbers must change places.
        target = out.view(out.shape[0] if heads or out.dim() > 1 else 1, -1)
        rows, columns = target.shape
        # Heads are put right one at a time, so a piece is whole heads.
        unit = rows // heads if heads else 1
        step = max(1, CHUNK // (columns * unit)) * unit
        pieces = [target[start : start + step] for start in range(0, rows, step)]
        row_bytes = tensor.nbytes // rows

        def expand(index: int) -> None:
            piece = pieces[index]
            raw = torch.empty(piece.shape[0] * row_bytes, dtype=torch.uint8)
            if os.preadv(file.fileno(), [raw.numpy().data], tensor.offset + index * step * row_bytes) != raw.numel():
                raise CheckpointError(f"{stored.file}: tensor {stored.origin!r}: the file ended; it has changed since")
            if heads is None and piece.device.type == "cpu":
                dequantise(raw, tensor.kind, piece.view(-1))
                return
            values = torch.empty(piece.shape, dtype=out.dtype)
            dequantise(raw, tensor.kind, values.view(-1))
            _put(values, piece, unit if heads else 0)

        with open(stored.file, "rb", buffering=0) as file:
            if len(pieces) == 1:
                expand(0)
            else:
                list(self._threads.map(torch.inference_mode()(expand), range(len(pieces))))
        if self._less_one(stored.origin):
            out -= 1.0

    def close(self) -> None:
        self._threads.shutdown()

    def _name(self, name: str) -> str:
        stem, _, suffix = name.rpartition(".")
        if stem in _TOP:
            return f"{_TOP[stem]}.{suffix}"
        block, number, *rest = [*stem.split("."), "", ""]
        inner = NAMES[self.arch].get(rest[0])
        # A name that no table knows stays as it is, and the loader reports it as left over.
        return f"model.layers.{number}.{inner}.{suffix}" if block == "blk" and inner else name

    def _heads(self, origin: str) -> int | None:
        """How many heads have their halves interleaved: llama.cpp stores Llama's q and k so."""
        if self.arch != "llama":
            return None
        return {"attn_q": self.heads, "attn_k": self.kv_heads}.get(origin.rpartition(".")[0].rpartition(".")[2])

    def _less_one(self, origin: str) -> bool:
        """llama.cpp stores Gemma's norms with the 1 added that Hugging Face's model adds itself."""
        return self.arch == "gemma3" and origin.endswith("norm.weight")


def _put(values: Tensor, target: Tensor, head: int) -> None:
    """Copy rows; heads of ``head`` rows (0, D/2, 1, D/2 + 1, ...) into their own order."""
    if not head:
        target.copy_(values)
        return
    for at in range(0, values.shape[0], head):
        pairs, halves = values[at : at + head].view(head // 2, 2, -1), target[at : at + head].view(2, head // 2, -1)
        halves[0].copy_(pairs[:, 0])
        halves[1].copy_(pairs[:, 1])
