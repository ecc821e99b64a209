"""Broken checkpoints: one sentence naming file and tensor, before anything large is allocated."""

import json
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from octavo.config.checkpoint import locate
from octavo.config.engine import ModelSection
from octavo.device.weights import loader, memory
from octavo.errors import CheckpointError, ConfigError, OutOfMemory
from octavo.testing import tiny

NAME = "model.layers.1.mlp.up_proj.weight"


def load(path, **section):
    found = locate(str(path), load_format=section.get("load_format", "auto"))
    given = {"path": found.path, "facts": found.facts, "dtype": "float32"} | section
    return loader.load(ModelSection(**given), torch.device("cpu"), torch.float32)


def refused(path, *words, error=CheckpointError, **section):
    with pytest.raises(error) as caught:
        load(path, **section)
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text, text


def edit(folder, change):
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


def reheader(file, change):
    """Rewrite the header of a safetensors file, its data kept."""
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    table = json.loads(data[8 : 8 + length])
    change(table)
    header = json.dumps(table).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header + data[8 + length :])


@pytest.fixture
def folder(tmp_path):
    return tiny.write_hf(tmp_path)


def test_a_missing_tensor(folder):
    edit(folder, lambda tensors: tensors.pop(NAME))
    refused(folder, "model.safetensors", NAME, "missing")


def test_a_tensor_that_is_left_over(folder):
    edit(folder, lambda tensors: tensors.update({"model.layers.1.mlp.up_prj.weight": torch.zeros(1)}))
    refused(folder, "model.safetensors", "up_prj", "no place")


def test_a_wrong_shape(folder):
    edit(folder, lambda tensors: tensors.update({NAME: torch.zeros(3, 5)}))
    refused(folder, "model.safetensors", NAME, "[3, 5]", "[96, 64]")


def test_an_unsupported_dtype(folder):
    edit(folder, lambda tensors: tensors.update({NAME: torch.zeros(96, 64, dtype=torch.int8)}))
    refused(folder, "model.safetensors", NAME, "I8", "BF16")


def test_a_truncated_file(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    refused(folder, "model.safetensors", "model.norm.weight", "truncated")


@pytest.mark.parametrize("length", [2**63, 10**9, 3])
def test_an_absurd_header(folder, length):
    file = folder / "model.safetensors"
    file.write_bytes(struct.pack("<Q", length) + file.read_bytes()[8:])
    refused(folder, "model.safetensors", "header")


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [96, 64], "data_offsets": [0, 10]},
        {"dtype": "F32", "shape": [96, 64], "data_offsets": [10**12, 10**12 + 96 * 64 * 4]},
        {"dtype": "F32", "shape": [-96, -64], "data_offsets": [0, 96 * 64 * 4]},
        {"dtype": "F32", "shape": "x", "data_offsets": [0, 1]},
        {"dtype": "F32"},
        {"dtype": ["F32"], "shape": [96, 64], "data_offsets": [0, 96 * 64 * 4]},
        7,
    ],
)
def test_a_malformed_entry(folder, entry):
    reheader(folder / "model.safetensors", lambda table: table.update({NAME: entry}))
    refused(folder, "model.safetensors", NAME)


def test_a_header_that_is_longer_than_its_file_is_said_to_be(folder):
    file = folder / "model.safetensors"
    file.write_bytes(struct.pack("<Q", 1000) + b"{}")
    refused(folder, "model.safetensors", "1000 bytes", "the file has 10", "truncated")
    file.write_bytes(struct.pack("<Q", 20_000) + b"[" * 20_000)
    refused(folder, "model.safetensors", "corrupt")


def test_no_weights_at_all(folder):
    (folder / "model.safetensors").unlink()
    refused(folder, str(folder), "safetensors")
    (folder / "pytorch_model.bin").write_bytes(b"x")
    refused(folder, "pytorch_model.bin")


def test_a_missing_shard(tmp_path):
    folder = tiny.write_hf(tmp_path, shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    refused(folder, "model-00002-of-00003.safetensors", "missing")


def test_an_index_that_lies(tmp_path):
    folder = tiny.write_hf(tmp_path, shards=2)
    index = folder / "model.safetensors.index.json"
    table = json.loads(index.read_text())
    table["weight_map"][NAME] = "model-00001-of-00002.safetensors"
    table["weight_map"]["model.norm.weight"] = "model-00002-of-00002.safetensors"
    index.write_text(json.dumps(table))
    refused(folder, "missing", "index")
    table["weight_map"][NAME] = "../elsewhere.safetensors"
    index.write_text(json.dumps(table))
    refused(folder, "outside")
    index.write_text("[]")
    refused(folder, "index")


def test_shards_give_the_same_model(tmp_path):
    one, three = load(tiny.write_hf(tmp_path / "1")), load(tiny.write_hf(tmp_path / "3", shards=3))
    x = torch.randn(4, 64)
    assert torch.equal(one.layers[2].qkv(x), three.layers[2].qkv(x))


def test_too_little_memory(folder, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda device: 1000)
    refused(folder, "weights need", "free", error=OutOfMemory)


@pytest.mark.parametrize(("form", "word"), [("gguf", "directory"), ("sftensors", "did you mean 'safetensors'")])
def test_a_load_format_that_does_not_fit(folder, form, word):
    refused(folder, word, error=ConfigError, load_format=form)


class TestGGUF:
    @pytest.fixture
    def file(self, tmp_path):
        return tiny.write_gguf(tmp_path / "model.gguf", kind="Q8_0")

    def test_truncated(self, file):
        file.write_bytes(file.read_bytes()[:-50])
        refused(file, "model.gguf", "tensor", "truncated")

    def test_truncated_in_the_header(self, file):
        file.write_bytes(file.read_bytes()[:200])
        refused(file, "model.gguf")

    def test_not_one(self, file):
        file.write_bytes(b"GGML" + file.read_bytes()[4:])
        refused(file, "model.gguf", "GGML")

    def test_a_version_of_the_future(self, file):
        file.write_bytes(b"GGUF" + struct.pack("<I", 9) + file.read_bytes()[8:])
        refused(file, "version 9", "2 and 3")

    def test_absurd_counts(self, file):
        data = file.read_bytes()
        file.write_bytes(data[:8] + struct.pack("<QQ", 2**40, 2**40) + data[24:])
        refused(file, "model.gguf", "corrupt")

    def test_an_unknown_and_an_unsupported_type(self, file):
        data = bytearray(file.read_bytes())
        at = data.index(b"blk.1.ffn_up.weight") + len(b"blk.1.ffn_up.weight") + 4 + 16
        data[at : at + 4] = struct.pack("<I", 39)
        file.write_bytes(data)
        refused(file, "blk.1.ffn_up.weight")
        data[at : at + 4] = struct.pack("<I", 24)
        file.write_bytes(data)
        refused(file, "blk.1.ffn_up.weight", "I8", "Q4_K")

    def test_an_offset_outside(self, file):
        data = bytearray(file.read_bytes())
        at = data.index(b"blk.1.ffn_up.weight") + len(b"blk.1.ffn_up.weight") + 4 + 16 + 4
        data[at : at + 8] = struct.pack("<Q", 2**40)
        file.write_bytes(data)
        refused(file, "blk.1.ffn_up.weight", "truncated or corrupt")

    def test_an_architecture_that_is_not_ours(self, file):
        file.write_bytes(file.read_bytes().replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0mamba", 1))
        refused(file, "mamba", "llama, qwen2, qwen3, gemma3", error=ConfigError)

    def test_a_missing_tensor(self, file):
        file.write_bytes(file.read_bytes().replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_xx.weight"))
        refused(file, "model.gguf", "blk.1.ffn_xx.weight", "no place")

    @given(at=st.integers(0, 3000), value=st.integers(0, 255))
    def test_any_wrong_byte_is_an_error_in_a_sentence_or_harmless(self, tmp_path_factory, at, value):
        folder = tmp_path_factory.mktemp("byte")
        file = tiny.write_gguf(folder / "model.gguf", num_hidden_layers=1, kind="Q8_0")
        data = bytearray(file.read_bytes())
        data[at] = value
        file.write_bytes(data)
        said = ""
        try:
            load(file)
        except ConfigError as error:
            said = str(error)
        assert "\n" not in said


def test_dummy_weights_need_a_config_alone(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(tiny.config("Gemma3ForCausalLM")))
    one, two = load(tmp_path, load_format="dummy", seed=3), load(tmp_path, load_format="dummy", seed=3)
    other = load(tmp_path, load_format="dummy", seed=4)
    ids = torch.arange(5)
    assert torch.equal(one.embed(ids), two.embed(ids))
    assert not torch.equal(one.embed(ids), other.embed(ids))
    assert one.embed(ids).std() > 0
