"""Flags, configuration files, keyword arguments: one list of fields, errors that name the nearest."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config import env
from octavo.config.args import EngineArgs, ServeArgs, count, length
from octavo.config.cli import Parser, add_flags, ask, read_file
from octavo.errors import ConfigError


def parse(*words):
    parser = Parser(prog="octavo test")
    parser.add_argument("model", nargs="?")
    parser.add_argument("--config")
    add_flags(parser, ServeArgs, skip=("model",))
    return ask(ServeArgs, parser.parse_args(list(words)))


@pytest.mark.parametrize(
    ("text", "number"),
    [("7", 7), ("4k", 4000), ("4K", 4096), ("1.5K", 1536), ("4GiB", 4 << 30), ("512M", 512 << 20), ("10B", 10), (9, 9)],
)
def test_counts(text, number):
    assert count(text) == number


@pytest.mark.parametrize("text", ["", "x", "4x", "k", "1.5", "0.0001K", True, "--3", "nan", "infK"])
def test_counts_that_are_none(text):
    with pytest.raises((ValueError, OverflowError)):
        count(text)


def test_lengths():
    assert length("auto") == -1
    assert length("2k") == 2000


def test_flags():
    args = parse("some/model", "--max_model_len", "4k", "--kv-cache-memory", "1GiB", "--no-enable-prefix-caching")
    assert (args.model, args.max_model_len, args.kv_cache_memory_bytes) == ("some/model", 4000, 1 << 30)
    assert args.enable_prefix_caching is False
    assert args.max_num_seqs is None
    many = parse("--api-key", "a", "b", "--hf-overrides", '{"a_b": {"c-d": 1}}', "--seed=3")
    assert (many.api_key, many.hf_overrides, many.seed) == (["a", "b"], {"a_b": {"c-d": 1}}, 3)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--max-model-length", "3"], "'--max-model-len'"),
        (["--max_num_seq", "3"], "'--max-num-seqs'"),
        (["--attention-backends", "x"], "'--attention-backend'"),
        (["--no-enable-prefix-cache"], "'--no-enable-prefix-caching'"),
        (["--tensor-parallel-size", "2"], "(one device runs a model"),
        (["--tensor-parallel-size", "2"], "not supported: --tensor-parallel-size 2 ("),
        (["-c", "4096"], "unknown flag -c: octavo calls it --max-model-len"),
        (["--alias=x"], "unknown flag --alias: octavo calls it --served-model-name"),
    ],
)
def test_an_unknown_flag_names_the_nearest(words, hint, capsys):
    with pytest.raises(SystemExit) as end:
        parse(*words)
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert hint in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--port", "eighty"], "--port"),
        (["--dtype", "bfloat61"], "bfloat16"),
        (["--hf-overrides", "[1]"], "--hf-overrides"),
        (["--max-model-len", "long"], "--max-model-len"),
        (["--step-timeout", "half"], "a number"),
    ],
)
def test_values_that_are_none(words, what):
    with pytest.raises(ConfigError, match=what):
        parse(*words)


@pytest.mark.parametrize("suffix", [".json", ".yaml", ".toml"])
def test_files(tmp_path, suffix):
    file = tmp_path / f"config{suffix}"
    text = {
        ".json": json.dumps({"max-num-seqs": 5, "port": 90, "api_key": ["a"], "hf-overrides": {"x": 1}}),
        ".yaml": "max-num-seqs: 5\nport: 90\napi_key: [a]\nhf-overrides: {x: 1}\n",
        ".toml": 'max-num-seqs = 5\nport = 90\napi_key = ["a"]\nhf-overrides = {x = 1}\n',
    }[suffix]
    file.write_text(text)
    args = parse("--config", str(file), "--port", "91")
    assert (args.max_num_seqs, args.port, args.api_key, args.hf_overrides) == (5, 91, ["a"], {"x": 1})


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("a.yaml", "max-num-sequences: 5", "max_num_seqs"),
        ("a.yaml", "page-size: 5\nblock-size: 6", "twice"),
        ("a.yaml", "port: eighty", "whole number"),
        ("a.yaml", "port: 1.5", "whole number"),
        ("a.yaml", "seed: true", "whole number"),
        ("a.yaml", "- port", "keys and values"),
        ("a.yaml", "a: [", "not valid"),
        ("a.json", "{", "not valid"),
        ("a.toml", "a", "not valid"),
        ("a.ini", "", ".yaml"),
    ],
)
def test_files_that_are_wrong(tmp_path, name, text, what):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=what):
        ServeArgs.of(read_file(tmp_path / name), "configuration key")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_file(tmp_path / "none.yaml")


def test_keyword_arguments():
    assert EngineArgs.of({"model": "m", "page_size": 16}).block_size == 16
    with pytest.raises(ConfigError, match="max_num_seqs"):
        EngineArgs.of({"max_num_sequences": 4})
    with pytest.raises(ConfigError, match="unknown argument 'port'"):
        EngineArgs.of({"port": 4})


def test_every_field_has_a_help_line_and_a_group():
    for one in dataclasses.fields(ServeArgs):
        assert one.default is None
        assert len(one.metadata["help"]) > 10
        assert one.metadata["group"]


@given(
    st.dictionaries(st.text(max_size=12), st.none() | st.booleans() | st.integers() | st.text(max_size=9), max_size=3)
)
def test_whatever_is_given_is_taken_or_refused_in_a_sentence(values):
    said = "taken"
    try:
        ServeArgs.of(values)
    except ConfigError as error:
        said = str(error)
    assert said.strip()


def test_strangers_in_the_environment():
    assert env.strangers({"OCTAVO_LOG_LEVEL": "x", "OCTAVO_COMMIT": "abc", "HOME": "/"}) == []
    (said,) = env.strangers({"OCTAVO_API_KEYS": "secret"})
    assert "OCTAVO_API_KEY'" in said
    assert "secret" not in said
    assert env.read("OCTAVO_API_KEY", {"OCTAVO_API_KEY": ""}) is None
