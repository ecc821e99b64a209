"""`octavo bench pressure`: the same tokens in any cache, with the preemptions that a small one takes."""

import json

import pytest

from octavo.cli.bench import main
from octavo.errors import ConfigError


def test_a_small_cache_preempts_and_makes_the_same_tokens(tmp_path, capsys):
    file = tmp_path / "records.jsonl"
    assert main(["pressure", "--num-prompts", "24", "--shares", "0.9", "0.5", "--output-json", str(file)]) == 0
    roomy, near, tight = [json.loads(line) for line in file.read_text().splitlines()]
    assert roomy["preemptions"] == 0 < tight["preemptions"]
    assert (roomy["share"], near["share"], tight["share"]) == (1.0, 0.9, 0.5)
    # Counted, not taken: these figures are the scheduler's, the same wherever they are made.
    assert near["of_roomy_percent"] > 90
    assert "preemptions" in capsys.readouterr().out


def test_shares_are_shares():
    with pytest.raises(ConfigError, match=r"--shares must be over 0 and at most 1, got 0.5 1.5"):
        main(["pressure", "--shares", "0.5", "1.5"])
