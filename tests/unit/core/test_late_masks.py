"""Masks that are made off the loop and come late: everybody says what they say alone."""

import random
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.test_drafts import Oracle
from core.workload import Ask, House, OddCompiler, OddGrammar, check_answers, crowd, drive, houses, workloads
from octavo.core.grammar.cost import Cost
from octavo.core.grammar.lane import Lane, Work
from octavo.core.scheduler.columns import HELD
from octavo.testing.cores import Told, hear
from octavo.testing.served import PATIENCE
from octavo.wire.reply import AbortReason, FinishReason


class Fickle(Cost):
    """Dear or cheap by the dice, whatever a mask took."""

    __slots__ = ("_chance", "_random")

    def __init__(self, chance: float, dice: random.Random):
        super().__init__()
        self._chance, self._random = chance, dice
        self.dear = dice.random() < chance

    def took(self, seconds: float, most: float = 0.0) -> None:
        self.dear = self._random.random() < self._chance


class Late(Lane):
    """Has no thread: each poll brings some of the work."""

    def __init__(self, done, gone, soon: float, dice: random.Random):
        super().__init__(done, gone)
        self._soon, self._random, self.works = soon, dice, 0
        self.left: list[Work] = []

    def take(self, work: Work, expected: float) -> None:
        self.works += 1
        self.left.append(work)

    def bring(self) -> None:
        self._random.shuffle(self.left)
        while self.left and self._random.random() < self._soon:
            work = self.left.pop()
            if not self._gone(work.key):
                work.do()
                self._done(work)


def late(chance: float, soon: float, seed: int, shared: bool = False, also=None):
    """A ``prepare`` of ``drive``: grammars are dear by ``chance``, one cost for all of them where it is ``shared``."""
    lanes: list[Late] = []

    def prepare(worker, core):
        dice = random.Random(seed)
        one = Fickle(chance, dice)
        core._compiler.cost = lambda ref: one if shared else Fickle(chance, dice)
        masking = core.masking
        masking.lane = lane = Late(masking.lane._done, masking.lane._gone, soon, dice)
        lanes.append(lane)
        poll = core.poll

        def brought(timeout):
            lane.bring()
            return poll(timeout if not lane.left else 0.0)

        core.poll = brought
        if also is not None:
            also(worker, core)

    return prepare, lanes


@settings(max_examples=60)
@given(
    houses(),
    workloads(grammar=True),
    st.sampled_from([0.1, 0.5, 1.0]),
    st.sampled_from([0.1, 0.5, 0.9]),
    st.integers(0, 99),
    st.booleans(),
)
def test_with_masks_that_come_late_everybody_says_what_they_say_alone(house, asks, chance, soon, seed, shared):
    prepare, _ = late(chance, soon, seed, shared)
    check_answers(house, asks, drive(house, asks, prepare))


@settings(max_examples=15)
@given(houses(pages=0), st.integers(0, 2**32), st.sampled_from([0.2, 1.0]))
def test_crowds_that_are_preempted_while_masks_are_made(house, seed, chance):
    asks = [replace(ask, grammar=index % 3 > 0) for index, ask in enumerate(crowd(seed))]
    prepare, lanes = late(chance, 0.4, seed)
    check_answers(house, asks, drive(house, asks, prepare))
    assert lanes[0].works


@settings(max_examples=30)
@given(
    houses(drafts=st.integers(1, 5)),
    workloads(grammar=True, most=8),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([0.1, 0.5]),
    st.integers(0, 99),
)
def test_windows_of_drafts_between_masks_that_come_late(house, asks, wrong, chance, seed):
    oracle = Oracle(house, asks, wrong, seed)

    def guess(worker, core):
        core.scheduler._planner.drafts.drafters = [oracle]

    prepare, _ = late(chance, 0.5, seed, also=guess)
    check_answers(house, asks, drive(house, asks, prepare))


def one_house(**values) -> House:
    usual = {"windows": (None,), "depth": 2, "rows": 4, "budget": 32, "threshold": 0, "policy": "fcfs", "pages": 40}
    return House(**(usual | {"page": 4} | values))


def ended(core, told: dict[int, Told], count: int) -> None:
    """Poll until so many requests have ended."""
    while sum(one.finish is not None for one in told.values()) < count or core.outstanding:
        hear(core.poll(0.01), told)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_whose_mask_never_comes_holds_up_nobody(depth):
    house = one_house(depth=depth)
    asks = [Ask([1, 2], 20, 1, 0), Ask([3, 4], 20, 2, 0, grammar=True)]
    core = house.core()
    core.start()
    core._compiler.cost = lambda ref: Fickle(1.0, random.Random(0))
    masking = core.masking
    masking.lane = lane = Late(masking.lane._done, masking.lane._gone, 0.0, random.Random(0))
    told: dict[int, Told] = {}
    core.add([ask.wire(handle) for handle, ask in enumerate(asks)])
    for _ in range(200):
        hear(core.poll(0.0), told)
    assert told[0].tokens == asks[0].right(house.windows)
    assert told[0].finish is FinishReason.LENGTH
    assert told[1].admitted
    assert told[1].tokens == []
    # one mask at a time brings one token at a time
    for count in range(1, 4):
        work = lane.left.pop()
        work.do()
        lane._done(work)
        for _ in range(20):
            hear(core.poll(0.0), told)
        assert told[1].tokens == asks[1].right(house.windows)[:count]
        assert core.scheduler.book.columns.flags.any()
        assert core.scheduler.book.held == 1
        assert not core.runnable
    # who goes away meanwhile is gone, and what is worked out for it is nobody's
    work = lane.left.pop()
    core.abort([1], AbortReason.CLIENT)
    hear(core.poll(0.0), told)
    assert told[1].finish is FinishReason.ABORT
    work.do()
    core.masking.arrived(work)
    for _ in range(3):
        core.poll(0.0)
    core.scheduler.book.check()
    assert (core.scheduler.unfinished, core.scheduler.book.held, core.runnable) == (0, 0, False)
    core.close()


def test_a_row_that_is_held_lets_the_others_run_in_bursts():
    house = one_house(burst=8)
    asks = [Ask([1, 2], 30, 1, 0), Ask([3, 4], 20, 2, 0, grammar=True)]
    core = house.core()
    core.start()
    core._compiler.cost = lambda ref: Fickle(1.0, random.Random(0))
    masking = core.masking
    masking.lane = Late(masking.lane._done, masking.lane._gone, 0.0, random.Random(0))
    repeats = []
    core.worker.on_forward = lambda plan: repeats.append(plan.repeat)
    core.add([ask.wire(handle) for handle, ask in enumerate(asks)])
    told: dict[int, Told] = {}
    for _ in range(60):
        hear(core.poll(0.0), told)
    assert told[0].tokens == asks[0].right(house.windows)
    assert max(repeats) > 1
    core.close()


class Wrong(OddGrammar):
    """Raises, or lets a wrong token through, once so much was said."""

    def __init__(self, how: str):
        super().__init__()
        self.how = how

    def fill(self, bits) -> None:
        if len(self.said) == 3:
            if self.how == "raises":
                raise RuntimeError("a limit")
            bits[:] = ~np.int32(0)
            return
        super().fill(bits)

    def accept(self, token: int) -> bool:
        if len(self.said) == 3 and self.how == "panics":
            raise BaseException("a panic")
        return len(self.said) != 3 and super().accept(token)


class WrongCompiler(OddCompiler):
    def __init__(self, how: str, dear: bool):
        self.how, self.dear = how, dear

    def compile(self, ref):
        return Wrong(self.how)

    def cost(self, ref):
        return Cost(1.0 if self.dear else 0.0)


@pytest.mark.parametrize("dear", [True, False])
@pytest.mark.parametrize("how", ["raises", "refuses", "panics"])
def test_what_goes_wrong_in_a_dear_grammar_ends_its_own_request(how, dear):
    house = one_house()
    core = house.core()
    core._compiler = WrongCompiler(how, dear)
    core.start()
    asks = [Ask([1, 2], 20, 1, 0), Ask([3, 4], 20, 2, 0, grammar=True)]
    core.add([ask.wire(handle) for handle, ask in enumerate(asks)])
    told: dict[int, Told] = {}
    ended(core, told, len(asks))
    assert told[0].tokens == asks[0].right(house.windows)
    assert told[1].finish is FinishReason.ERROR
    assert "breaks the grammar of this request" in told[1].error
    assert len(told[1].tokens) == 4
    core.scheduler.book.check()
    core.close()


class Endless(OddGrammar):
    """Hangs on its third mask until it is let go."""

    def __init__(self, go: threading.Event, hangs: threading.Event):
        super().__init__()
        self.go, self.hangs = go, hangs

    def fill(self, bits) -> None:
        if len(self.said) == 2:
            self.hangs.set()
            assert self.go.wait(PATIENCE)
        super().fill(bits)


class EndlessCompiler(OddCompiler):
    def __init__(self) -> None:
        self.go, self.hangs = threading.Event(), threading.Event()
        self.first = True

    def compile(self, ref):
        first, self.first = self.first, False
        return Endless(self.go, self.hangs) if first else OddGrammar()

    def cost(self, ref):
        return Fickle(1.0, random.Random(0))


def test_a_mask_that_takes_for_ever_ends_its_request_alone():
    house = one_house()
    core = house.core()
    core._compiler = compiler = EndlessCompiler()
    core.start()
    core.masking.lane._deadline = 0.05
    asks = [Ask([1, 2], 20, 1, 0), *(Ask([3, n], 20, n, 0, grammar=True) for n in range(3))]
    told: dict[int, Told] = {}
    for handle, ask in enumerate(asks):
        core.add([ask.wire(handle)])
    ended(core, told, len(asks))
    failed = [one for one in told.values() if one.finish is FinishReason.ERROR]
    assert len(failed) == 1
    assert "was not known within 0.05 seconds" in failed[0].error
    assert len(failed[0].tokens) == 2
    for handle, ask in enumerate(asks):
        assert told[handle] in failed or told[handle].tokens == ask.right(house.windows)
    compiler.go.set()  # what comes of it now is nobody's
    for _ in range(3):
        core.poll(0.0)
    core.scheduler.book.check()
    assert not core.scheduler.book.columns.flags[core.scheduler.book.order].any() & HELD
    core.close()


def test_closing_while_a_mask_is_made_waits_for_nobody(monkeypatch):
    monkeypatch.setattr("octavo.core.grammar.lane.CLOSE", 0.05)
    house = one_house()
    core = house.core()
    core._compiler = compiler = EndlessCompiler()
    core.start()
    core.add([Ask([3, 4], 20, 2, 0, grammar=True).wire(1)])
    while not compiler.hangs.is_set():
        core.poll(0.0)
    core.close()
    compiler.go.set()
