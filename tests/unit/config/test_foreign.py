"""Arguments of other engines that octavo has none of: what asks for nothing is taken, the rest refused."""

import argparse
import logging

import pytest

from octavo.cli.serve import parser
from octavo.config.args import EngineArgs, ServeArgs
from octavo.config.cli import ask
from octavo.config.foreign import CALLED, FOREIGN
from octavo.errors import ConfigError


def test_none_is_an_argument_of_ours_or_in_the_help():
    assert not FOREIGN.keys() & ServeArgs.names().keys()
    shown = parser().format_help()
    assert not [name for name in FOREIGN if f"--{name.replace('_', '-')} " in shown]


def test_a_start_script_of_vllm_is_taken(tmp_path):
    words = (
        "-tp 1 --pipeline-parallel-size=1 --swap_space 4 -O3 -O 2 --compilation-config {} --max-seq-len-to-capture 8 "
        '--limit-mm-per-prompt {"image":0} --task generate --tokenizer-mode auto --enable-chunked-prefill '
        "--disable-log-requests --no-enable-lora --enable-reasoning -asc 1 --cpu-offload-gb 0 "
        "--kv-cache-dtype auto some/model --port 81"
    )
    parsed = parser().parse_args(words.split())
    assert isinstance(parsed, argparse.Namespace)
    assert (parsed.model, ask(ServeArgs, parsed).port) == ("some/model", 81)
    file = tmp_path / "serve.yaml"
    file.write_text("tensor-parallel-size: 1\ntrust-remote-code: false\nport: 82\n")
    assert ask(ServeArgs, parser().parse_args(["--config", str(file)])).port == 82


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-tp 2", "not supported: -tp 2 (one device runs a model: leave it out; possible: 1)"),
        ("--tp 2", "not supported: --tp 2 (one device"),
        ("--enable-lora", "not supported: --enable-lora (there are no LoRA adapters)"),
        ("-ngl 20", "not supported: -ngl 20 (a model is on one device as a whole, which --device names"),
        ("--no-enable-chunked-prefill", "it always is"),
        ("--no-swap-space", "unknown flag --no-swap-space"),
        ("--quantization=fp8", "as the checkpoint is"),
        ("--limit-mm-per-prompt {\"image\":2}", "text only"),
        ("--tensor-parallel-size", "expects a value"),
        ("--uds /tmp/x", "--host and --port"),
        ("--middleware a.b", "proxy"),
        ("--hf-token hush", "HF_TOKEN"),
    ],
)  # fmt: skip
def test_what_asks_for_something_is_refused(words, said, capsys):
    with pytest.raises(SystemExit):
        parser().parse_args(words.split())
    told = capsys.readouterr().err
    assert said in told
    assert "hush" not in told
    assert told.count("\n") == 1


def test_a_value_of_another_flag_and_what_follows_two_dashes_stay():
    assert parser().parse_args(["--", "-tp"]).model == "-tp"


def test_keyword_arguments():
    args = EngineArgs.of(
        {
            "max_num_seqs": 3, "tensor_parallel_size": 1, "trust_remote_code": False, "quantization": None,
            "kv_cache_dtype": "auto", "enable_lora": False, "swap_space": 4.0, "cpu_offload_gb": 0.0,
            "enable_sleep_mode": True, "limit_mm_per_prompt": {"image": 0}, "compilation_config": 3,
        }
    )  # fmt: skip
    assert args == EngineArgs(max_num_seqs=3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tensor_parallel_size", 2), ("enable_lora", True), ("quantization", "awq"), ("kv_cache_dtype", "fp8"),
        ("enable_chunked_prefill", False), ("compilation_config", {"level": 3}), ("hf_token", "hush"),
    ],
)  # fmt: skip
def test_keyword_arguments_that_ask_for_something(name, value):
    with pytest.raises(ConfigError, match=f"not supported: {name}") as error:
        EngineArgs.of({name: value})
    assert "(" in str(error.value)
    assert "hush" not in str(error.value)


def test_code_of_a_checkpoint_is_asked_for_in_vain(caplog):
    with caplog.at_level(logging.WARNING, "octavo"):
        assert EngineArgs.of({"trust_remote_code": True}) == EngineArgs()
        assert parser().parse_args(["--trust-remote-code", "m"]).model == "m"
        assert ServeArgs.of({"trust-remote-code": True}, "configuration key") == ServeArgs()
    assert [record.getMessage().split(" has no effect: ")[0] for record in caplog.records] == [
        "trust_remote_code=True", "--trust-remote-code", "trust-remote-code: True",
    ]  # fmt: skip
    caplog.clear()
    EngineArgs.of({"trust_remote_code": False})
    assert not caplog.records


def test_names_of_other_engines_lead_to_ours():
    assert {name.removeprefix("no_") for name in CALLED.values()} <= ServeArgs.names().keys()
    assert not CALLED.keys() & (ServeArgs.names().keys() | FOREIGN.keys())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--ctx-size 4096 -m x.gguf", "unknown flag --ctx-size: octavo calls it --max-model-len"),
        ("-np 4", "octavo calls it --max-num-seqs"),
        ("-t 4", "octavo calls it --threads"),
        ("-a name", "octavo calls it --served-model-name"),
        ("-hf owner/name", "octavo calls it --model"),
        ("--model_path=x", "unknown flag --model-path: octavo calls it --model"),
        ("--context-length 4096", "octavo calls it --max-model-len"),
        ("--mem-fraction-static 0.8", "octavo calls it --gpu-memory-utilization"),
        ("--disable-radix-cache", "octavo calls it --no-enable-prefix-caching"),
    ],
)
def test_a_flag_of_another_engine_is_told_in_ours(words, said, capsys):
    with pytest.raises(SystemExit):
        parser().parse_args(words.split())
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


def test_what_is_the_same_elsewhere_is_taken():
    words = ["-m", "x.gguf", "--threads", "2", "-ngl", "99", "--jinja", "--metrics", "--tp", "1"]
    parsed = parser().parse_args(words)
    assert (parsed.model_flag, parsed.threads) == ("x.gguf", "2")
    assert parser().parse_args(["parallel"]).model == "parallel", "a model may have such a name"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("context_length", "octavo calls it max_model_len"),
        ("disable_radix_cache", "octavo calls it enable_prefix_caching=False"),
    ],
)
def test_an_argument_of_another_engine_is_told_in_ours(name, said):
    with pytest.raises(ConfigError, match=f"unknown argument '{name}': {said}"):
        EngineArgs.of({name: 1})
