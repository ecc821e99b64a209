"""`octavo tune` without a GPU: what it asks, tries and keeps; and that what it measures runs."""

import json
import time
from types import SimpleNamespace

import pytest
import torch

from octavo.bench import candidates, refine, tune
from octavo.cli import main
from octavo.common import probe
from octavo.common.math import next_power_of_two
from octavo.config.checkpoint import locate
from octavo.config.facts import ModelFacts
from octavo.device.attention import triton
from octavo.device.kernels import joined, tuned
from octavo.device.kernels.joined import Tile
from octavo.device.runner.decode import padded
from octavo.testing import tiny
from tests.unit.device.kernels.interpreter import HERE, interpreted

SMALL = ModelFacts(
    architecture="Qwen3ForCausalLM", vocab=320, hidden=128, layers=2, q_heads=4, kv_heads=2, head_dim=32, ffn=192,
    max_positions=256,
)  # fmt: skip
QWEN = ModelFacts(
    architecture="Qwen3ForCausalLM", vocab=151936, hidden=1024, layers=28, q_heads=16, kv_heads=8, head_dim=128,
    ffn=3072, max_positions=40960, tied=True,
)  # fmt: skip


def test_the_questions_of_a_model():
    found = tune.questions(QWEN, torch.bfloat16, 256)
    linears = [key for key in found if isinstance(key, tuned.Linear)]
    assert {key.rows for key in linears} == {16, 32, 64, 128, 256}
    assert {(key.n, key.k, key.joint) for key in linears} == {
        (4096, 1024, "norm"), (1024, 2048, "add"), (6144, 1024, "norm+silu"), (1024, 3072, "add"),
    }  # fmt: skip
    pairs = [key for key in found if isinstance(key, tuned.Decode)]
    assert sorted(key.pairs for key in pairs) == [8 << i for i in range(9)]
    assert {(key.group, key.head_dim) for key in pairs} == {(2, 128)}


@pytest.mark.parametrize("rows", [16, 32, 64, 128, 256])
@pytest.mark.parametrize(
    "shape",
    [(4096, 1024, "norm"), (1024, 3072, "add"), (24576, 4096, "norm+silu"), (4096, 12288, "add"), (960, 576, "norm")],
    ids=str,
)
def test_candidates_can_be_launched(rows, shape):
    key = tuned.Linear(rows, *shape)
    used, every = tune.choices(key)
    assert every[-1] is None
    assert used in every
    assert len(set(every)) == len(every) <= candidates.TILES + 2
    tiles = [Tile(*how) for how in every if how is not None]
    assert len(tiles) > 8
    assert len({(how.m, how.n, how.splits) for how in tiles}) >= 3
    for how in tiles[1:]:
        assert how.fits(rows, key.n, key.k)
        assert how.stages * 2 * how.k * (how.m + how.n) <= candidates.SHARED
        assert how.ahead & (how.ahead - 1) == 0


@pytest.mark.parametrize("pairs", [1, 4, 8, 64, 256, 2048])
def test_ways_to_decode_can_be_launched(pairs):
    used, every = tune.choices(tuned.Decode(pairs, 2, 128))
    assert every[0] == used
    assert len(set(every)) == len(every) > 4
    for how in map(triton.Decode._make, every):
        assert how.splits == 1 or pairs * how.splits <= triton.SPLIT_LIMIT
        with tuned.using(tuned.Table(decode={tuned.Decode(pairs, 2, 128): tuple(how)})):
            assert triton.choose(pairs, 2, 128) == how


class Fake:
    """A clock to which every further choice is quicker, up to the last but one; the fourth fails."""

    def __init__(self):
        self.calls = 0

    def __call__(self, run, copies):
        assert copies > 0
        self.calls += 1
        if self.calls % 7 == 4:
            raise RuntimeError("out of resource: shared memory")
        return 1.0 / self.calls


def test_the_best_is_kept_and_found_by_a_later_start(tmp_path, monkeypatch, capsys):
    keys = [tuned.Linear(16, 256, 128, "norm"), tuned.Linear(128, 128, 128, "add"), tuned.Decode(8, 2, 32)]
    with HERE:
        found = tune.tune(keys, SMALL, torch.float16, HERE, Fake())
    assert list(found) == keys
    record = tune.told(found, SMALL, torch.float16, "small")
    for key, one in zip(keys, [*record["linear"], *record["decode"]], strict=True):
        assert one["key"] == list(key)
        assert one["failed"]
        least = min(sum(times) for _, times in one["candidates"])
        assert sum(one["us"]) == pytest.approx(least, rel=0.3)
    shown = tune.table(record)
    assert "norm" in shown
    assert len(shown.splitlines()) == 1 + len(keys)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(probe, "gpus", lambda: (probe.GPU("NVIDIA H200", 1 << 37, (9, 0)),))
    tuned.write(tuned.folder() / "nvidia-h200--small.json", record)
    (tuned.folder() / "nvidia-h200--broken.json").write_text('{"linear": [{"key": [1]}]}')
    (tuned.folder() / "nvidia-h200--short.json").write_text('{"linear": [{"key": [1, 2, 3], "best": null}]}')
    (tuned.folder() / "nvidia-a100--small.json").write_text("not read")
    table = tuned.current()
    assert {key: how for key, how in table.linear.items() if key in keys} == {
        key: found[key].best(tune.choices(key)[0]) for key in keys[:2]
    }
    assert table.decode[keys[2]] == found[keys[2]].best(tune.choices(keys[2])[0])
    tuned._read.cache_clear()


def test_a_small_gain_changes_nothing_and_every_size_counts_as_long_as_it_takes():
    tried = tune.Tried({(1,): [1.0, 100.0], (2,): [0.5, 100.1], (3,): [2.0, 98.7]})
    assert tried.best((1,)) == (1,)
    assert tried.ranked() == [(2,), (3,), (1,)]
    much = 1.0 + 1.1 * tune.LOSS
    assert tune.Tried({(1,): [1.0, 100.0], (2,): [much, 80.0], (3,): [1.0, 90.0]}).best((1,)) == (3,)
    assert tune.Tried({(1,): [2.0, 100.0], (2,): [1.9, 120.0]}).best((2,)) == (1,)
    assert tune.Tried({None: [1.0], (2,): [2.0]}).best((2,)) is None


@pytest.mark.parametrize("rows", [1, 2, 256])
def test_contexts_of_a_batch_differ_around_their_mean(rows):
    lens = tune.spread(rows, 256)
    assert abs(float(lens.float().mean()) - 256) < 1
    assert 128 <= int(lens.min()) <= int(lens.max()) <= 384
    assert len(set(lens.tolist())) >= rows // 2


def test_it_ends_when_it_is_told_to():
    with HERE:
        assert tune.tune([tuned.Decode(8, 2, 32)], SMALL, torch.float16, HERE, Fake(), until=time.monotonic() - 1) == {}


@interpreted
@pytest.mark.parametrize(
    ("key", "choice"),
    [
        (tuned.Linear(16, 48, 128, "norm"), (16, 16, 64, 2, 2, 4, 1, 3)),
        (tuned.Linear(70, 128, 128, "add"), (64, 32, 64, 1, 2, 4, 0, 1)),
        (tuned.Linear(16, 64, 64, "norm+silu"), None),
        (tuned.Decode(4, 2, 32), (16, 2, 1, 1, 4, 2, 1, 0)),
        (tuned.Decode(4, 2, 32), (16, 1, 1, 64, 1, 2, 1, 4)),
    ],
    ids=str,
)
def test_what_is_measured_runs(key, choice, monkeypatch):
    with torch.inference_mode(), HERE, tuned.using(tune.alone(key, choice)):
        run, copies, read = tune.case(key, SMALL, torch.float16, HERE).run(64, copies=2)
        assert copies == 2
        assert read > 0
        for number in range(copies):
            assert len(run(number)) in (key[0], key[0] // SMALL.kv_heads)


def test_no_gpu_is_a_sentence(capsys, monkeypatch):
    monkeypatch.setattr(probe, "gpus", lambda: ())
    assert main.main(["tune", "somewhere"]) == 1
    assert "none is here" in capsys.readouterr().err
    assert main.main(["tune", "somewhere", "--max-num-seqs", "0"]) == 1
    capsys.readouterr()
    for seconds in ("-1", "nan"):
        assert main.main(["tune", "somewhere", "--seconds", seconds]) == 1
        assert f"--seconds must be at least 0, got {seconds}" in capsys.readouterr().err


def test_a_gpu_that_octavo_does_not_run_on_is_not_compiled_for(capsys):
    pytest.importorskip("triton")
    assert main.main(["warm", "--load-format", "dummy", "--capability", "7.5"]) == 1
    assert "compute capability 8.0 or more, not 7.5" in capsys.readouterr().err


def test_the_packages_own_tables_are_tables():
    for path in tuned.PACKAGE.glob("*.json"):
        told = json.loads(path.read_text())
        table = tuned.Table()
        tuned._take(told, table)
        for key, how in table.linear.items():
            assert how is None or joined.Tile(*how).fits(key.rows, key.n, key.k)


def test_a_way_to_decode_of_an_older_table_is_read():
    key, way = tuned.Decode(8, 2, 32), [64, 1, 1, 1, 4, 2, 2, 4]
    for best, read in ((way, tuple(way)), (way[:7], (*way[:7], 0))):
        table = tuned.Table()
        tuned._take({"linear": [], "decode": [{"key": list(key), "best": best}]}, table)
        assert table.decode == {key: read}
    for best in (way[:6], [*way, 0], None):
        with pytest.raises((ValueError, TypeError)):
            tuned._take({"linear": [], "decode": [{"key": list(key), "best": best}]}, tuned.Table())


def test_a_table_is_chosen_again_from_what_was_measured(tmp_path, capsys):
    """Without a GPU; also from a record whose tiles did not say yet when the next kernel may start."""
    keys = [tuned.Linear(16, 256, 128, "norm"), tuned.Decode(8, 2, 32)]
    with HERE:
        found = tune.tune(keys, SMALL, torch.float16, HERE, Fake())
    record = tune.told(found, SMALL, torch.float16, "small") | {"gpu": "NVIDIA H200"}
    for one in record["linear"]:
        one["candidates"] = [[how and how[:-1], us] for how, us in one["candidates"]]
    (tmp_path / "details.json").write_text(json.dumps(record))
    again = tune.measured(record)
    for key in keys:
        assert again[key].ranked() == found[key].ranked()
    folder = tiny.write_hf(tmp_path / "model", "Qwen3ForCausalLM")
    output = tmp_path / "table.json"
    command = ["tune", str(folder), "--from", str(tmp_path / "details.json"), "--output", str(output)]
    assert main.main(command) == 0
    table = json.loads(output.read_text())
    assert table["gpu"] == "NVIDIA H200"
    best = found[keys[0]].best(tune.choices(keys[0])[0])
    assert [one["best"] for one in table["linear"]] == [best and list(best)]
    assert "candidates" not in table["linear"][0]
    capsys.readouterr()
    for text in ("[]", "{}", '{"dtype": "float16", "linear": [{"key": [1]}], "decode": []}'):
        (tmp_path / "details.json").write_text(text)
        assert main.main(command) == 1
        assert "no record" in capsys.readouterr().err


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """A model, a record of all that its steps ask, where a table may lie, the questions and the model's facts; a GPU
    whose steps all take as long."""
    folder = tiny.write_hf(tmp_path / "model", "Qwen3ForCausalLM")
    facts = locate(str(folder)).facts
    with HERE:
        keys = tune.questions(facts, torch.bfloat16, 8)
        found = {
            key: tune.Tried({how: [1.0 + nth] * 3 for nth, how in enumerate(tune.choices(key)[1])}) for key in keys
        }
    record = tune.told(found, facts, torch.bfloat16, "model") | {"gpu": "Some GPU"}
    (tmp_path / "details.json").write_text(json.dumps(record))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(probe, "gpus", lambda: (SimpleNamespace(name="Some GPU", capability=(9, 0)),))
    monkeypatch.setattr(tune, "variants", lambda *_: [])

    class Steps:
        layers = 2

        def __init__(self, *_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def __call__(self, rows, context, table):
            return 1.0

    monkeypatch.setattr(refine, "Steps", Steps)
    return folder, tmp_path / "details.json", tmp_path / "table.json", keys, facts


@pytest.mark.parametrize("whole", [[], ["--whole-steps"]], ids=["alone", "whole"])
@pytest.mark.parametrize(
    ("asked", "kind", "rows"),
    [
        (["--only", "decode"], tuned.Decode, None),
        (["--only", "linear"], tuned.Linear, None),
        (["--rows", "8"], None, 8),
        (["--rows", "3", "--only", "linear"], tuned.Linear, 3),
    ],
)
def test_a_part_is_chosen_anew_and_the_rest_stays(measured, asked, kind, rows, whole):
    folder, details, table, keys, facts = measured
    before = {"linear": [], "decode": []}
    for key in keys:
        entry = {"key": list(key), "best": [9] * 8, "mine": True}
        before["linear" if isinstance(key, tuned.Linear) else "decode"].append(entry)
    table.write_text(json.dumps(before))
    command = ["tune", str(folder), "--from", str(details), "--output", str(table), "--max-num-seqs", "8"]
    assert main.main([*command, *asked, *whole]) == 0
    after = json.loads(table.read_text())
    entries = [*after["linear"], *after["decode"]]
    assert len(entries) == len(keys)
    for one in entries:
        is_linear = len(one["key"]) == 4
        new = kind in (None, tuned.Linear if is_linear else tuned.Decode)
        if rows is not None and is_linear:
            new = new and one["key"][0] == tuned.bucket(rows)
        elif rows is not None:
            new = new and one["key"][0] == next_power_of_two(padded(rows) * facts.kv_heads)
        assert ("mine" in one) == (not new)


def test_what_nothing_is_chosen_of_is_a_sentence(measured, capsys):
    folder, details, table, _, _ = measured
    command = ["tune", str(folder), "--from", str(details), "--output", str(table)]
    for more, word in (
        (["--rows", "512", "--whole-steps", "--max-num-seqs", "8"], "--rows"),
        (["--rows", "0"], "--rows must be"),
        (["--whole-steps", "--dtype", "float16"], "--dtype says float16"),
    ):
        assert main.main([*command, *more]) == 1
        assert word in capsys.readouterr().err
    record = json.loads(details.read_text())
    for one in record["linear"]:
        one["key"][1] += 64
    details.write_text(json.dumps(record))
    assert main.main([*command, "--whole-steps", "--only", "linear"]) == 1
    assert "says nothing of what steps of model ask" in capsys.readouterr().err
    assert not table.exists()
