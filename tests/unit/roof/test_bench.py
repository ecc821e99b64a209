"""The benchmark's own arithmetic, and that its workloads never change by accident."""

import json
import math

import pytest

from octavo.bench import offline, report
from octavo.bench.workloads import CPU, GPU, WORKLOADS, pick
from octavo.cli.main import main
from octavo.errors import ConfigError


def test_workloads_are_fixed():
    mixed = WORKLOADS["mixed32"].make(49152)
    assert len(mixed) == 32
    assert mixed == WORKLOADS["mixed32"].make(49152)
    assert all(32 <= len(ids) <= 512 and 32 <= out <= 256 for ids, out in mixed)
    assert all(0 <= token < 300 for ids, _ in WORKLOADS["c8"].make(300) for token in ids)
    assert sum(out for _, out in WORKLOADS["d256"].make(151936)) == 256 * 256


def test_unknown_workloads_name_the_nearest():
    assert pick(["cpu"]) == CPU
    assert pick(["gpu"]) == GPU
    with pytest.raises(ConfigError, match="did you mean 'mixed32'"):
        pick(["mixd32"])


def test_percentiles():
    assert report.percentile([1, 2, 3, 4], 50) == 2.5
    assert report.percentile([5], 99) == 5
    assert math.isnan(report.percentile([], 50))


def test_records_say_where_they_come_from(tmp_path):
    one = report.record(workload="c1", out_tok_s=1234.5)
    assert one["machine"]
    assert one["commit"]
    assert one["command"].startswith("octavo")
    report.write([one, one], str(tmp_path / "out.jsonl"))
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == [one, one]
    assert "1,234" in report.table([one], ["workload", "out_tok_s", "nothing"])


def test_what_cannot_be_run_is_told_in_a_sentence(capsys, tmp_path):
    for words, said in (
        (["throughput", "--workload", "c1", "--output-json", str(tmp_path / "no" / "x")], "cannot be written"),
        (["throughput", "--repeats", "0"], "--repeats must be at least 1, got 0"),
        (["throughput", "--workload", "c1", "--input-len", "3"], "leave --input-len"),
        (["throughput", "--input-len", "3"], "needs both of --input-len and --output-len"),
        (["throughput", "--input-len", "3", "--output-len", "0"], "--output-len must be at least 1, got 0"),
        (["host", "--functions", "-1"], "--functions must be at least 0, got -1"),
        (["grammar", "--flood", "2", "--step-ms", "-1"], "--step-ms must be at least 0, got -1"),
        (["grammar", "--flood", "2", "--step-ms", "nan"], "--step-ms must be at least 0, got nan"),
        (["front", "--step-ms", "0", "-0.5"], "--step-ms must be at least 0, got -0.5"),
        (["serve", "--request-rate", "-3"], "--request-rate must be at least 0, got -3"),
        (["serve", "--base-url", "nowhere"], "no server answers at nowhere"),
        (["serve", "--base-url", "nowhere", "--port", "3"], "leave --host and --port out"),
        (["serve", "--api-key", "a\nb"], "holds a control character"),
        (["serve", "--burstiness", "0"], "--burstiness must be over 0"),
        (["serve", "--max-concurrency", "0"], "--max-concurrency must be at least 1, got 0"),
        (["serve", "--random-range-ratio", "1"], "--random-range-ratio must be from 0 to under 1"),
        (["serve", "--extra-body", "[1]"], "--extra-body must be a JSON object"),
        (["serve", "--header", "nothing"], "--header takes NAME=VALUE"),
        (["serve", "--sweep", "1,two"], "take numbers with commas"),
        (["serve", "--sweep", "0"], "take numbers over 0"),
        (["serve", "--sweep", "1", "--sweep-rate", "1"], "--sweep or --sweep-rate"),
        (["serve", "--plot", "x.gif"], "names that end in .svg or .png"),
        (["serve", "--percentile-metrics", "tpto"], "did you mean 'tpot'"),
        (["serve", "--metric-percentiles", "0"], "over 0 and at most 100"),
        (["serve", "--goodput", "ttft"], "--goodput takes METRIC:MILLISECONDS"),
        (["serve", "--goodput", "itl:3"], "possible are ttft, tpot and e2el"),
        (["startup", "--repeats", "1", "--model", "nowhere"], "the start failed: model 'nowhere' is neither"),
    ):
        assert main(["bench", *words]) == 1
        assert said in (told := capsys.readouterr().err)
        assert "Traceback" not in told


def test_a_record_does_not_hold_headers(monkeypatch):
    words = ["--header", "authorization=Bearer hush", "x=hush", "--chat", "--model", "a=b"]
    monkeypatch.setattr("sys.argv", ["octavo", "bench", "serve", *words])
    command = report.record()["command"]
    assert "hush" not in command
    assert command.endswith("--header authorization=... x=... --chat --model a=b")


def test_a_record_does_not_hold_the_key(monkeypatch):
    for words in (["--api-key", "hush", "--chat"], ["--api_key=hush", "--chat"]):
        monkeypatch.setattr("sys.argv", ["octavo", "bench", "serve", *words])
        command = report.record()["command"]
        assert "hush" not in command
        assert command.endswith("... --chat")


def test_a_workload_of_vllms_flags(monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(offline, "throughput", lambda works, *rest: seen.append((works, *rest)) or [])
    words = "--backend vllm --dataset-name random --input-len 8 --output-len 3 --num-prompts 5 --max-num-seqs 2"
    assert main(["bench", "throughput", *words.split(), "--tensor-parallel-size", "1"]) == 0
    [([work], engine, _, _)] = seen
    assert engine == {"max_num_seqs": 2}
    assert [(len(ids), out) for ids, out in work.make(100)] == [(8, 3)] * 5
    shown = ""
    for kind in ("throughput", "serve"):
        with pytest.raises(SystemExit):
            main(["bench", kind, "--help"])
        shown += capsys.readouterr().out
        with pytest.raises(SystemExit):
            main(["bench", kind, "--dataset-name", "sharegpt"])
        assert "unknown dataset 'sharegpt'; known: random" in capsys.readouterr().err
    assert "--dataset-name" not in shown
    assert "--ignore-eos" not in shown
