"""Random requests with aborts, priorities and preemption over a tiny real model: balanced books, and nothing kept."""

import gc
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from flow.test_core_and_device import LONGEST, core_of, requests_of
from msgspec.structs import replace

from octavo.core.scheduler import prompts
from octavo.wire.reply import AbortReason
from octavo.wire.request import EngineRequest


@dataclass
class Round:
    """What became of some requests. ``said``: by handle; ``aborted``: handles of those that were to be."""

    said: dict[int, list[int]]
    ended: int = 0
    counted: int = 0
    preempted: int = 0
    aborted: set[int] = field(default_factory=set)


def round_of(core, rng, requests: list[EngineRequest], most: int = 12) -> Round:
    """All of ``requests``, about ``most`` of them open at a time, and some given up, to the end of the last one."""
    seen = Round({one.handle: [] for one in requests})
    waiting, open_handles = list(requests), set()
    while waiting or open_handles:
        if len(open_handles) < most and waiting:
            some, waiting = waiting[:4], waiting[4:]
            core.add(some)
            open_handles |= {one.handle for one in some}
        if rng.random() < 0.05:
            gone = int(rng.choice(sorted(open_handles)))
            core.abort([gone], AbortReason.CLIENT)
            seen.aborted.add(gone)
        for reply in core.poll(1.0):
            at = 0
            for handle, count in zip(reply.handles.tolist(), reply.counts.tolist(), strict=True):
                assert handle in open_handles, "it says more behind its end"
                seen.said[handle] += reply.tokens[at : at + count].tolist()
                at += count
            if reply.stats is not None:
                seen.counted += reply.stats.generation_tokens
                seen.preempted += reply.stats.preemptions
            for delta in reply.deltas:
                assert delta.error is None
                if delta.finish is not None:
                    assert delta.handle in open_handles, "it ended twice"
                    open_handles.discard(delta.handle)
                    seen.ended += 1
        core.scheduler.book.check()
    while core.outstanding or core.runnable:
        core.poll(0.0)
    left = core.scheduler.book.take_stats()
    seen.counted += left.generation_tokens
    seen.preempted += left.preemptions
    balanced(core, seen)
    return seen


def balanced(core, seen: Round) -> None:
    """Nobody is there any more."""
    book = core.scheduler.book
    book.check()
    assert book.kv.pool.free == book.kv.pool.pages - 1, "pages are lost"
    assert book.rows.available == book.schedule.rows, "rows are lost"
    assert (book.live, book.running, book.prefilling, len(book.queue)) == ({}, [], [], 0)
    assert not book.columns.uses.any()
    assert core.faults == 0
    assert seen.ended == len(seen.said), "a request was lost"
    assert sum(map(len, seen.said.values())) == seen.counted


def varied(rng, requests: list[EngineRequest], first: int) -> list[EngineRequest]:
    """The same requests with handles from ``first`` on, of all priorities, told at each token or seldom."""
    return [
        replace(one, handle=first + nth, priority=int(rng.integers(3)), every=int(rng.integers(3)))
        for nth, one in enumerate(requests)
    ]


def tensors() -> int:
    gc.collect()
    return sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())


@pytest.fixture(autouse=True)
def greedy(monkeypatch):
    """Newcomers leave one token's pages: those who run are preempted often."""
    monkeypatch.setattr(prompts, "KEPT", 1)


def check(count: int, options: dict) -> None:
    rng = np.random.default_rng(5)
    core = core_of((None, 6), pages=34, max_num_seqs=6, max_num_batched_tokens=24, policy="priority", **options)
    held = []
    for turn in range(2):
        made = [one for seed in range(-(-count // 7)) for one in requests_of(int(rng.integers(2**31)))][:count]
        made = [replace(one, limit=max(one.limit, int(rng.integers(30, LONGEST + 1)))) for one in made]
        seen = round_of(core, rng, varied(rng, made, turn * count))
        assert seen.preempted
        assert seen.aborted
        held.append(tensors())
    assert held[1] <= held[0], "steps leave tensors behind"
    core.close()


@pytest.mark.parametrize("options", [{}, {"depth": 2, "burst": 4}])
def test_books_balance_over_a_real_model(options):
    check(25, options)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"depth": 2}, {"depth": 2, "burst": 16}])
def test_books_balance_over_a_real_model_after_many(options):
    check(500, options)
