"""Random requests with aborts, priorities and preemption over a tiny real model: balanced books, and nothing kept."""

import gc

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from test_core_and_device import LONGEST, core_of, requests_of

from octavo.wire.reply import AbortReason


def round_of(core, rng, count: int, first: int) -> dict[str, int]:
    """``count`` requests with handles from ``first`` on; how many ended, and how many tokens were told and counted."""
    requests = [one for seed in range(-(-count // 7)) for one in requests_of(int(rng.integers(2**31)))][:count]
    requests = [
        replace(
            one,
            handle=first + nth,
            limit=max(one.limit, int(rng.integers(30, LONGEST + 1))),
            priority=int(rng.integers(3)),
            every=int(rng.integers(3)),
        )
        for nth, one in enumerate(requests)
    ]
    seen = {"ended": 0, "told": 0, "counted": 0, "preempted": 0, "aborted": 0}
    waiting, open_handles = list(requests), set()
    while waiting or open_handles:
        if len(open_handles) < 12 and waiting:
            some, waiting = waiting[:4], waiting[4:]
            core.add(some)
            open_handles |= {one.handle for one in some}
        if rng.random() < 0.05:
            core.abort([int(rng.choice(sorted(open_handles)))], AbortReason.CLIENT)
            seen["aborted"] += 1
        for reply in core.poll(1.0):
            seen["told"] += len(reply.tokens)
            if reply.stats is not None:
                seen["counted"] += reply.stats.generation_tokens
                seen["preempted"] += reply.stats.preemptions
            for delta in reply.deltas:
                assert delta.error is None
                if delta.finish is not None:
                    assert delta.handle in open_handles, "it ended twice"
                    open_handles.discard(delta.handle)
                    seen["ended"] += 1
        core.scheduler.book.check()
    while core.outstanding or core.runnable:
        core.poll(0.0)
    left = core.scheduler.book.take_stats()
    seen["counted"] += left.generation_tokens
    seen["preempted"] += left.preemptions
    return seen


def tensors() -> int:
    gc.collect()
    return sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())


def check(count: int, options: dict) -> None:
    rng = np.random.default_rng(5)
    core = core_of((None, 6), pages=34, max_num_seqs=6, max_num_batched_tokens=24, policy="priority", **options)
    pool = core.scheduler.book.kv.pool
    held = []
    for turn in range(2):
        seen = round_of(core, rng, count, turn * count)
        assert seen["ended"] == count
        assert seen["told"] == seen["counted"]
        assert seen["preempted"]
        assert seen["aborted"]
        assert pool.free == pool.pages - 1
        assert not core.scheduler.book.live
        held.append(tensors())
    assert held[1] <= held[0], "steps leave tensors behind"
    assert core.faults == 0
    core.close()


@pytest.mark.parametrize("options", [{}, {"depth": 2, "burst": 4}])
def test_books_balance_over_a_real_model(options):
    check(25, options)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"depth": 2}, {"depth": 2, "burst": 16}])
def test_books_balance_over_a_real_model_after_many(options):
    check(500, options)
