"""GGUF files against their Hugging Face twins, and every block type against the ``gguf`` package."""

import gguf
import numpy as np
import pytest
import torch

from conformance.driver import Sequence, model_of, random_ids
from octavo.config.checkpoint import locate
from octavo.testing import tiny

#: Windows and head sizes that GGUF's llama and qwen2 cannot say are left out.
CASES = [
    *(("LlamaForCausalLM", rope, {}) for rope in ("default", "linear", "yarn", "llama3")),
    ("LlamaForCausalLM", "default", {"tie_word_embeddings": True, "attention_bias": True}),
    ("MistralForCausalLM", "default", {"sliding_window": None}),
    ("Qwen2ForCausalLM", "default", {"use_sliding_window": False}),
    ("Qwen3ForCausalLM", "default", {}),
    ("Gemma3ForCausalLM", "linear", {"query_pre_attn_scalar": 24}),
]
QUANTISED = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]


@pytest.mark.parametrize(("architecture", "rope", "changes"), CASES)
def test_a_gguf_file_gives_the_logits_of_its_twin(tmp_path, architecture, rope, changes):
    changes = changes | {"bos_token_id": 3, "eos_token_id": 5}
    twin = model_of(tiny.write_hf(tmp_path / "hf", architecture, rope, **changes))
    model = model_of(tiny.write_gguf(tmp_path / "model.gguf", architecture, rope, **changes))
    ids = random_ids(44, 320)
    torch.testing.assert_close(Sequence(model).feed(ids), Sequence(twin).feed(ids), rtol=0, atol=1e-4)
    assert model.facts.eos == twin.facts.eos == (5,)
    assert model.facts.tied == twin.facts.tied
    assert model.facts.windows == twin.facts.windows
    assert model.facts.max_positions == twin.facts.max_positions


@pytest.mark.parametrize("kind", QUANTISED)
def test_every_block_type_is_what_the_gguf_package_says(tmp_path, kind):
    path = tiny.write_gguf(tmp_path / "m.gguf", "Qwen2ForCausalLM", kind=kind, hidden_size=256, intermediate_size=512)
    model = model_of(path)
    reader = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}

    def want(name):
        tensor = reader[name]
        return torch.from_numpy(np.array(gguf.dequantize(tensor.data, tensor.tensor_type)))

    layer = model.layers[2]
    down = want("blk.2.ffn_down.weight")
    x = torch.eye(512)
    torch.testing.assert_close(
        layer.down.method.apply(x, torch.zeros(512, 256)), down.T.contiguous(), rtol=0, atol=1e-6
    )
    assert torch.equal(model.embed(torch.arange(320)), want("token_embd.weight"))
    assert torch.equal(model.layers[0].qkv.norm.weight, want("blk.0.attn_norm.weight"))
    assert locate(str(path)).facts.dtype == {"F16": "float16"}.get(kind, "bfloat16")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_blocks_are_rounded_once(tmp_path, dtype):
    path = tiny.write_gguf(tmp_path / "m.gguf", kind="Q8_0")
    wide, narrow = model_of(path), model_of(path, dtype)
    assert torch.equal(narrow.embed.weight, wide.embed.weight.to(dtype))
