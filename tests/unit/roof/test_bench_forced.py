"""octavo bench grammar --forced: pairs of engines that say the same, one of them in fewer steps."""

import json

import pytest

from octavo.bench import forced as bench_forced
from octavo.bench.forced import ForcedLoad, forced
from octavo.cli.main import main
from octavo.testing import tiny, tokenizer
from octavo.testing.served import PATIENCE


def test_answers_are_the_same_with_drafts_of_what_is_forced_and_take_fewer_steps(tmp_path, monkeypatch):
    for limit in ("DEAR", "DEAR_MEAN", "STEP"):  # however long this machine takes
        monkeypatch.setattr(f"octavo.core.grammar.cost.{limit}", PATIENCE)
    folder = tokenizer.write(tiny.write_hf(tmp_path, "LlamaForCausalLM", max_position_embeddings=2048), size=320)
    records = forced(ForcedLoad(rows=(1, 3), pairs=2, engine={"model": str(folder), "dtype": "float32", "threads": 1}))
    assert [(one["workload"], one["rows"]) for one in records] == [
        ("record", 1),
        ("record", 3),
        ("call", 1),
        ("call", 3),
    ]
    for one in records:
        json.dumps(one)
        assert one["same"] == one["rows"]
        assert 0 < one["accepted"] <= one["drafted"]
        assert one["tokens"] > one["accepted"]
        assert len(one["gains"]) == one["pairs"] == 2
        if one["rows"] == 1:  # of several requests each may be ready at another time
            assert one["steps"] < one["steps_without"]
            assert one["steps"] <= one["first_steps"]


def test_an_engine_that_was_built_is_closed_where_the_other_one_is_not_built(monkeypatch):
    closed = []

    class Engine:
        def __init__(self, **options):
            if "speculative_config" in options:
                raise MemoryError("no room for a second one")

        def __enter__(self):
            return self

        def __exit__(self, *_):
            closed.append(self)

    monkeypatch.setattr("octavo.llm.LLM", Engine)
    with pytest.raises(MemoryError):
        forced(ForcedLoad())
    assert len(closed) == 1


def test_flags_of_an_engine_are_those_of_both(monkeypatch):
    loads = []
    monkeypatch.setattr(bench_forced, "forced", lambda load: loads.append(load) or [])
    words = ["--model", "m", "--dtype", "float32", "--threads", "2", "--pairs", "3"]
    for rows in ([], ["2", "4"]):
        assert main(["bench", "grammar", "--forced", *rows, *words]) == 0
    engine = {"model": "m", "dtype": "float32", "threads": 2}
    assert [(tuple(one.rows), one.pairs, one.engine) for one in loads] == [((1, 8), 3, engine), ((2, 4), 3, engine)]


def test_what_cannot_be_measured_is_told_in_a_sentence(capsys):
    for words, said in (
        (["--forced", "--pairs", "0"], "--pairs must be at least 1, got 0"),
        (["--forced", "2", "0"], "--forced must be at least 1, got 0"),
        (["--forced", "--flood", "2"], "--forced and --flood are two measurements: leave one out"),
        (["--forced", "--backend", "guidance"], "--backend says nothing about --forced: leave it out"),
        (["--flood", "2", "--walks", "3"], "--walks says nothing about --flood: leave it out"),
        (["--flood", "2", "--dtype", "float32"], "--dtype says nothing about --flood: leave it out"),
        (["--dtype", "float32"], "--dtype is about --forced: ask for that too"),
        (["--pairs", "3"], "--pairs is about --forced: ask for that too"),
        (["--step-ms", "3"], "--step-ms is about --flood: ask for that too"),
    ):
        assert main(["bench", "grammar", *words]) == 1
        assert said in (told := capsys.readouterr().err)
        assert "Traceback" not in told
