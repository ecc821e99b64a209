"""Arguments of vLLM that octavo has none of: what asks for nothing is taken, the rest is refused with a reason."""

import argparse

import pytest

from octavo.cli.serve import parser
from octavo.config.args import EngineArgs, ServeArgs
from octavo.config.cli import ask
from octavo.config.foreign import FOREIGN
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
        ("-tp 2", "flag -tp '2' (one device runs a model: leave it out; possible: 1)"),
        ("--trust-remote-code", "flag --trust-remote-code (no code of a checkpoint is ever run"),
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
        ("tensor_parallel_size", 2), ("trust_remote_code", True), ("quantization", "awq"), ("kv_cache_dtype", "fp8"),
        ("enable_chunked_prefill", False), ("compilation_config", {"level": 3}), ("hf_token", "hush"),
    ],
)  # fmt: skip
def test_keyword_arguments_that_ask_for_something(name, value):
    with pytest.raises(ConfigError, match=f"unknown argument '{name}'") as error:
        EngineArgs.of({name: value})
    assert "(" in str(error.value)
    assert "hush" not in str(error.value)
