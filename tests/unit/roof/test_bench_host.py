"""`octavo bench host`: what it measures is there, whatever it is."""

import json

import pytest

from octavo.cli.bench import main
from octavo.errors import ConfigError


@pytest.mark.parametrize("more", [[], ["--stream"]])
def test_every_part_of_a_step_has_a_figure(tmp_path, capsys, more):
    file = tmp_path / "records.jsonl"
    asked = ["--batch-size", "1", "5", "--output-len", "70", "--repeats", "1", "--functions", "3"]
    assert main(["host", *asked, "--output-json", str(file), *more]) == 0
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert [one["workload"].split()[:2] for one in records] == [["host", "1"], ["host", "5"]]
    for one in records:
        parts = [one[f"{part}_us"] for part in ("schedule", "update", "replies", "collect", "loop")]
        assert all(value >= 0 for value in parts)
        assert one["host_us"] > 0
        assert len(one["functions"]) == 3
    assert "schedule_us" in capsys.readouterr().out


def test_a_batch_of_nobody_is_refused():
    with pytest.raises(ConfigError, match="--batch-size must be at least 1, got 0"):
        main(["host", "--batch-size", "4", "0"])
