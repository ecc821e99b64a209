"""`octavo tune`'s second half: the answers are those of whole steps, whatever was fastest alone."""

import pytest
import torch

from octavo.bench import candidates, refine, tune
from octavo.bench.refine import CONTEXTS, finalists
from octavo.device.attention import triton
from octavo.device.kernels import tuned
from octavo.device.kernels.joined import Tile
from octavo.device.kernels.launch import AFTER, LATE
from octavo.testing import tiny
from tests.unit.roof.test_tune import SMALL

UP, DOWN = tuned.Linear(16, 256, 128, "norm"), tuned.Linear(16, 128, 128, "add")
ATTEND = tuned.Decode(32, 2, 32)  # 16 rows of two heads


def found():
    ways = {}
    for key in (UP, DOWN, ATTEND):
        _, every = tune.choices(key)
        sizes = 3 if key == ATTEND else 1
        ways[key] = tune.Tried({how: [1.0 + 0.1 * at] * sizes for at, how in enumerate(every)})
    return ways


def test_the_fastest_few_are_tried_again_and_late():
    tried = finalists(found())
    for key, few in tried.items():
        assert few[0] == tune.choices(key)[1][0]
        assert len(set(few)) == len(few)
    assert set(candidates.likely(ATTEND)[: refine.LIKELY]) <= {triton.Decode._make(how) for how in tried[ATTEND]}
    every = refine.all_tried(tried)
    assert every[ATTEND] == tried[ATTEND]
    for how in tried[UP]:
        assert how is None or (*how[:-1], LATE) in every[UP]


def test_more_loads_in_flight_leave_no_room_for_a_second_program():
    key = tuned.Linear(64, 1024, 4096, "add")
    how = Tile(64, 64, 64, 1, 4, 4)
    more = candidates.roomy(how, key)
    assert more == how._replace(stages=8)
    assert candidates.roomy(more, key) is None  # it is that already
    assert candidates.roomy(how, key._replace(k=256)) is None  # so many loads there are not


def test_what_a_whole_step_says_is_chosen():
    """A step that costs what its parts cost, but for one pair that does not go together, and one that does not run."""
    ways = found()
    tried = finalists(ways)
    liked, broken = (*tried[UP][1][:-1], LATE), tried[DOWN][3]
    asked = []

    def measure(rows, context, table):
        asked.append((rows, context))
        up, down, attend = table.linear[UP], table.linear[DOWN], table.decode[ATTEND]
        if down == broken:
            raise RuntimeError("out of resource: shared memory")
        costs = 0.0 if up == liked else 0.7 if up == tried[UP][1] else 1.0
        costs += (0.5 if down == tried[DOWN][1] else 1.0) + 0.01 * tried[ATTEND].index(attend)
        return context * (costs + (up == liked and down == tried[DOWN][1]))

    refined = refine.refine(tried, SMALL.kv_heads, measure)
    assert refined.chosen == {UP: liked, DOWN: tried[DOWN][0], ATTEND: tried[ATTEND][0]}
    assert {rows for rows, _ in asked} == {16}
    assert {context for _, context in asked} == set(CONTEXTS)
    before, after = refined.steps[16]
    assert after < before
    told = refine.told(refined, 3)
    assert "16" in refine.shown(told)
    record = tune.told(ways, SMALL, torch.float16, "small", refined.chosen)
    assert record["linear"][0]["best"] == list(liked)
    assert Tile(*liked).release in (AFTER, LATE)


def test_it_ends_with_what_it_has():
    ways = found()
    refined = refine.refine(finalists(ways), SMALL.kv_heads, lambda rows, context, table: 1.0, over=lambda: True)
    assert refined.chosen == {key: few[0] for key, few in finalists(ways).items()}


def test_of_what_is_not_asked_the_step_has_what_is_in_use():
    tables = []
    base = tuned.Table({UP: (1,), DOWN: (2,)}, {ATTEND: (3,)})
    some = {DOWN: finalists(found())[DOWN]}
    refined = refine.refine(some, SMALL.kv_heads, lambda *given: tables.append(given[2]) or 1.0, base)
    assert set(refined.chosen) == {DOWN}
    assert all((table.linear[UP], table.decode[ATTEND]) == ((1,), (3,)) for table in tables)
    assert {table.linear[DOWN] for table in tables} == {*refine.all_tried(some)[DOWN]} - {
        (*how[:-1], LATE) for how in some[DOWN][refine.LATER :] if how
    }
    assert base.linear[DOWN] == (2,)


def test_steps_are_of_a_few_layers(tmp_path, monkeypatch):
    class Step:
        def __init__(self, runner, rows, context, temperature, steps):
            made.append((len(runner.model.attentions), rows, context))

        def body_seconds(self, context):
            return tuned.current().decode[ATTEND][0] + context

    made = []
    monkeypatch.setattr(refine, "Step", Step)
    monkeypatch.setattr(refine, "ROTATED", 1)
    folder = tiny.write_hf(tmp_path, "Qwen3ForCausalLM", num_hidden_layers=3, max_position_embeddings=512)
    from octavo.config.checkpoint import locate

    with refine.Steps(str(folder), locate(str(folder)).facts, torch.float32, 4) as steps:
        for context in (64, 128):
            assert steps(4, context, tuned.Table(decode={ATTEND: (7,)})) == 7 + context
    assert made == [(2, 4, 512 - refine.SLACK)]


@pytest.mark.parametrize(("pairs", "heads", "rows"), [(8, 8, 1), (2048, 8, 256), (16, 3, 4), (4, 8, 1)])
def test_rows_of_a_question_about_pairs(pairs, heads, rows):
    assert refine.rows_of(tuned.Decode(pairs, 2, 128), heads) == rows
