"""2,000 random requests with aborts, priorities and preemption on a GPU: balanced books, the tokens of a plain run, and
memory that stands still."""

import gc
import random

import numpy as np
import pytest
import torch
from flow.test_ledger import greedy, round_of, varied  # noqa: F401 (a fixture)
from msgspec.structs import replace
from test_engine import LONGEST, core_of, requests_of, run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here"),
]
DEVICE = "cuda"
#: Of a round, and rounds of requests of their own; the last two are repeated.
COUNT, ROUNDS = 200, 3
#: One request of so many is run plainly too.
SAMPLE = 10
#: Repetitions in which graphs may still be captured: each is, on its second use.
CAPTURES = 3


def allocated() -> int:
    gc.collect()
    return torch.cuda.memory_allocated()


def requests_of_round(turn: int):
    """Every other round has requests of the simplest kind, whose steps are graphs. Answers may be long: nobody can tell
    at admission what they will hold."""
    rng = np.random.default_rng(turn)
    made = [one for part in range(COUNT // 20) for one in requests_of(1000 * turn + part, 20, plain=turn % 2 > 0)]
    made = [replace(one, limit=max(one.limit, int(rng.integers(60, LONGEST + 1)))) for one in made]
    return varied(rng, made, turn * COUNT)


@pytest.mark.parametrize(("windows", "pages", "burst"), [((), 24, 4), ((None, 9), 40, 16)])
def test_books_balance_and_memory_stands_still(windows, pages, burst):
    options = {"max_num_seqs": 16, "max_num_batched_tokens": 64, "depth": 2, "policy": "priority"}
    core = core_of(windows, pages=pages, platform=DEVICE, burst=burst, **options)

    def whole_round(turn: int):
        core._pace._draw = random.Random(turn)  # so that a repetition is one, step for step
        core.call("reset_prefix_cache")
        return round_of(core, np.random.default_rng(turn), requests_of_round(turn), 24)

    seen = [whole_round(turn) for turn in range(ROUNDS)]
    assert all(one.aborted for one in seen)
    assert sum(one.preempted for one in seen) > ROUNDS
    held = [allocated()]
    while len(held) < 2 or held[-1] > held[-2]:
        assert len(held) <= CAPTURES, f"each round leaves memory behind: {held} bytes are held after them"
        for turn in range(ROUNDS - 2, ROUNDS):
            whole_round(turn)
        held.append(allocated())
    core.close()

    plain = core_of(windows, platform=DEVICE, max_num_seqs=1, max_num_batched_tokens=256)
    for turn, one in enumerate(seen):
        some = requests_of_round(turn)[::SAMPLE]
        for handle, right in run(plain, some).items():
            said = one.said[handle]
            assert said == (right[: len(said)] if handle in one.aborted else right)
    plain.close()
