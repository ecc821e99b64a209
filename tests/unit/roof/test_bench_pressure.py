"""`octavo bench pressure`: the same tokens in any cache, with the preemptions that a small one takes."""

import json

import pytest

from octavo.cli.bench import main
from octavo.errors import ConfigError
from octavo.testing import tiny


def test_a_small_cache_preempts_and_makes_the_same_tokens(tmp_path, capsys):
    file = tmp_path / "records.jsonl"
    assert main(["pressure", "--num-prompts", "24", "--shares", "0.9", "0.5", "--output-json", str(file)]) == 0
    roomy, near, tight = [json.loads(line) for line in file.read_text().splitlines()]
    assert roomy["preemptions"] == 0 < tight["preemptions"]
    assert (roomy["share"], near["share"], tight["share"]) == (1.0, 0.9, 0.5)
    # Counted, not taken: these figures are the scheduler's, the same wherever they are made.
    assert near["of_roomy_percent"] > 90
    assert tight["peak_usage_percent"] == 100
    assert roomy["sustained_usage_percent"] is None
    assert tight["sustained_usage_percent"] > 90
    assert "preemptions" in capsys.readouterr().out


def test_a_model_under_pressure(tmp_path):
    """Its seconds are taken, and only its counts are the same everywhere."""
    folder, file = tiny.write_hf(tmp_path, max_position_embeddings=512), tmp_path / "records.jsonl"
    what = ["--model", str(folder), "--num-prompts", "8", "--output-len", "60", "120", "--shares", "0.5"]
    assert main(["pressure", *what, "--label", "tiny", "--threads", "1", "--output-json", str(file)]) == 0
    roomy, tight = [json.loads(line) for line in file.read_text().splitlines()]
    assert roomy["model"] == tight["model"] == "tiny"
    assert roomy["preemptions"] == 0 < tight["preemptions"]
    assert tight["peak_usage_percent"] == 100


def test_caches_that_are_too_small_are_told(tmp_path):
    folder = tiny.write_hf(tmp_path, max_position_embeddings=512)
    what = ["pressure", "--model", str(folder), "--num-prompts", "8", "--output-len", "60", "120", "--threads", "1"]
    with pytest.raises(ConfigError, match=r"--shares 0.1: \d+ pages, and one request may need \d+"):
        main([*what, "--shares", "0.1"])
    with pytest.raises(ConfigError, match=r"even the whole cache of \d+ pages is too small for all that run"):
        main([*what, "--kv-cache-memory-bytes", "1000000"])


def test_flags_of_an_engine_are_a_models():
    with pytest.raises(ConfigError, match="--max-num-seqs says how a model is run; name one with --model"):
        main(["pressure", "--max-num-seqs", "4"])


def test_lengths_are_in_order():
    with pytest.raises(ConfigError, match="--output-len is the least and the most, got 9 3"):
        main(["pressure", "--output-len", "9", "3"])


def test_shares_are_shares():
    with pytest.raises(ConfigError, match=r"--shares must be over 0 and at most 1, got 0.5 1.5"):
        main(["pressure", "--shares", "0.5", "1.5"])
