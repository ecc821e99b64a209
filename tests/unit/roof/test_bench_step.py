"""`octavo bench step` on a CPU, with a tiny model: a step, its operators, a traced run; and what is made of spans."""

import json
from importlib.util import find_spec

import pytest
import torch

from octavo.bench import step, trace
from octavo.bench.step import Launch, exclusive, tally
from octavo.bench.trace import Span, analyse
from octavo.bench.workloads import Workload
from octavo.cli.main import main
from octavo.config.facts import ModelFacts
from octavo.device.sampling.sampler import Draw
from octavo.testing import tiny

QWEN = ModelFacts(
    architecture="Qwen3ForCausalLM", vocab=151936, hidden=1024, layers=3, q_heads=16, kv_heads=8, head_dim=128,
    ffn=3072, max_positions=4096, tied=True,
)  # fmt: skip


@pytest.fixture
def model(tmp_path):
    return str(tiny.write_hf(tmp_path / "model", "Qwen3ForCausalLM", max_position_embeddings=1024))


def test_a_step_and_its_operators(model, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    flags = [
        "--device",
        "cpu",
        "--threads",
        "1",
        "--steps",
        "2",
        "--dtype",
        "float32",
        "--load-format",
        "dummy",
        "--output-json",
        str(out),
    ]
    assert main(["bench", "step", "--model", model, "--rows", "1", "3", "--context", "5", "20", *flags]) == 0
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(one["rows"], one["context"]) for one in records] == [(1, 5), (1, 20), (3, 5), (3, 20)]
    for one in records:
        assert one["step_ms"] > 0
        assert "device_ms" not in one
        names = {line["kernel"] for line in one["kernels"]}
        assert {"aten::mm", "aten::addmm"} & names, names
        assert sum(line["percent"] for line in one["kernels"]) == pytest.approx(100, abs=5)
    assert records[3]["read_mb"] > records[0]["read_mb"]
    assert "microseconds a step" in capsys.readouterr().out


def test_a_cache_that_is_too_small_is_a_sentence(model, capsys):
    flags = ["--device", "cpu", "--load-format", "dummy", "--kv-cache-memory", "300000", "--block-size", "16"]
    assert main(["bench", "step", "--model", model, "--rows", "64", "--context", "40", *flags]) == 1
    assert "pages" in capsys.readouterr().err


def test_a_run_is_traced(model):
    work = Workload(name="w", about="", requests=3, inputs=(4, 4), outputs=(30, 30), running=3)
    engine = {"model": model, "device": "cpu", "threads": 1, "load_format": "dummy"}
    record = trace.trace(work, engine, 5, "tiny")
    assert record["steps"] == 5
    assert 0 < record["busy_percent"] <= 100
    assert record["kernels"]
    known = {what for *_, what in trace.PHASES} | {"other"}
    assert {line["phase"] for line in record["idle"]} <= known
    assert {line["phase"] for line in record["gaps"]} <= known
    assert "the device busy" in "\n".join(trace.shown(record, step.KERNELS, step.LINES))
    assert trace.trace(work, engine, 500, "tiny")["steps"] < 100  # as many as there are
    with pytest.raises(RuntimeError, match="ended before"):
        trace.trace(work, engine, 5, "tiny", skip=1000)


def test_gaps_and_who_is_to_blame():
    device = [Span("a", 0, 10), Span("b", 8, 12), Span("c", 20, 30), Span("d", 31, 40)]
    host = [Span("poll", 0, 40), Span("plan", 12, 18), Span("launch body", 18, 19)]
    found = analyse(device, host)
    assert found["window_us"] == 40
    assert found["busy_percent"] == pytest.approx(100 * 31 / 40, abs=0.1)
    assert found["gaps"] == [
        {"gap_us": 8, "after": "b", "before": "c", "phase": "plan"},
        {"gap_us": 1, "after": "c", "before": "d", "phase": "poll"},
    ]
    assert {one["phase"]: one["us"] for one in found["idle"]} == {"plan": 6, "launch body": 1, "poll": 2}
    assert analyse([], [])["busy_percent"] == 0


def test_kernels_are_told_apart_by_their_place_in_a_step():
    known = [Launch("tile", "tile 1", 100), Launch("decode", "decode", 0), Launch("tile", "tile 2", 300)]
    spans = [("tile", 0.0, 1.0), ("decode", 1.0, 5.0), ("tile", 2.0, 2.0), ("nvjet", 3.0, 9.0)] * 2
    found = {line["kernel"]: line for line in tally(spans, 2, known)}
    assert [found[name]["us"] for name in ("nvjet", "decode", "tile 2", "tile 1")] == [9, 5, 2, 1]
    assert all(line["calls"] == 1 for line in found.values())
    assert found["tile 2"]["tb_s"] == pytest.approx(300 / 2 / 1e6, abs=1e-3)
    assert next(iter(found)) == "nvjet"


@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")
def test_the_launches_of_a_step_have_names_and_bytes():
    found = step.launches(QWEN, torch.bfloat16, 8, Draw.WARM)
    tiles = [one for one in found if one.kernel == "tile"]
    assert [one.name for one in tiles] == 3 * [
        "tile 4096x1024 norm", "tile 1024x2048 add", "tile 6144x1024 norm+silu", "tile 1024x3072 add",
    ]  # fmt: skip
    layers = step.weights_read(QWEN, torch.bfloat16) - QWEN.vocab * QWEN.hidden * 2
    assert sum(one.read for one in tiles) == layers
    one_row = step.launches(QWEN, torch.bfloat16, 1, Draw.GREEDY)
    assert sum(one.read for one in one_row) == layers
    assert [one.kernel for one in one_row].count("decode") == 3


def test_a_kernel_that_waits_for_another_is_not_counted_twice():
    spans = [
        ("void at::native::(anonymous namespace)::fill<float, 4>(int)", 0.0, 5.0),
        ("tile", 2.0, 8.0),
        ("tile", 3.0, 1.0),
    ]
    assert list(exclusive(spans)) == [("fill", 0.0, 5.0), ("tile", 5.0, 5.0), ("tile", 10.0, 0.0)]
