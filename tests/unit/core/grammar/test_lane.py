"""What is dear, who makes dear masks and in which order, and what becomes of work that nobody wants any more."""

import queue
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from octavo.common.proc import clocked
from octavo.core.grammar.base import Grammar
from octavo.core.grammar.cost import DEAR, DEAR_MEAN, FORGIVEN, GOOD, PART, STEP, USUAL, Cost, Telling, budget, share
from octavo.core.grammar.lane import Lane, Work
from octavo.core.grammar.manager import Follower, Grammars
from octavo.core.grammar.reasoning import FREE, Reasoning
from octavo.testing.served import PATIENCE
from octavo.wire.plan import Kind, StepPlan
from octavo.wire.request import GrammarRef

LINE = np.zeros(1, np.int32)


def cheap_again(cost: Cost) -> int:
    """How many masks it takes after a dear one."""
    cost.took(2 * DEAR)
    masks = 0
    while cost.dear:
        cost.took(USUAL)
        masks += 1
    return masks


def test_one_dear_mask_makes_a_grammar_dear_and_many_cheap_ones_make_it_cheap_again():
    cost = Cost()
    for _ in range(1000):
        cost.took(USUAL)
    assert not cost.dear
    first, second = (cheap_again(cost) for _ in range(2))
    assert first >= GOOD
    assert first + GOOD <= second < 3 * GOOD  # the next time it takes longer


def test_a_mask_that_was_dear_alone_is_soon_forgotten():
    """However long it took: a machine that others share may stand still for longer than any mask takes."""
    cost = Cost()
    for _ in range(20):
        cost.took(100 * DEAR)
        assert cost.dear
        masks = 0
        while cost.dear:
            cost.took(USUAL / 2)
            masks += 1
        assert masks <= 2 * GOOD
        for _ in range(2 * FORGIVEN):
            cost.took(USUAL / 2)
    assert not cost.dear


def test_what_is_dear_again_and_again_is_cheap_for_less_and_less():
    cost = Cost()
    dear = 0
    for number in range(20 * GOOD):
        dear += cost.dear
        cost.took(2 * DEAR if not cost.dear else USUAL)
        assert number < 2 * GOOD or dear > number / 2


def test_first_masks_do_not_make_a_grammar_dear_by_the_dearest_of_them():
    cost = Cost(DEAR * 0.9, mean=USUAL)
    cost.took(USUAL)
    assert not cost.dear
    assert Cost(DEAR * 0.9).mean == DEAR * 0.9


def test_slow_steps_have_more_time_for_masks():
    assert budget(8, 32 * STEP) == 32 * STEP * PART > budget(8)
    assert budget(8, STEP) == budget(8)
    assert share(8) < share(8, 32 * STEP) <= DEAR_MEAN
    cost = Cost()
    for _ in range(100):
        cost.took(DEAR_MEAN * 0.9, share(8, 1.0))
    assert not cost.dear
    cost.took(DEAR_MEAN * 0.9)  # by a thread, which knows of no rows
    assert not cost.dear


def test_many_rows_have_less_each_but_what_is_usual():
    assert budget(1) == STEP
    assert budget(1000) / 1000 == pytest.approx(USUAL)
    cost = Cost()
    for _ in range(100):
        cost.took(DEAR_MEAN * 0.9, share(1))
    assert not cost.dear
    for _ in range(100):
        cost.took(DEAR_MEAN * 0.9, share(1000))
    assert cost.dear


def test_what_was_tried_elsewhere_is_known_at_once():
    assert Cost(2 * DEAR).dear
    assert not Cost(DEAR / 2).dear
    assert Cost(told=DEAR / 2).guesses
    assert not Cost(told=2 * DEAR).guesses


class Clocked(Grammar):
    """Takes as long as it says, by a clock that only it moves."""

    def __init__(self, clock: list[float], seconds: float):
        self.clock, self.seconds, self.filled = clock, seconds, 0

    def accept(self, token):
        return True

    def fill(self, bits):
        self.clock[0] += self.seconds
        self.filled += 1
        bits[:] = 2

    def rollback(self, count):
        pass

    def forced(self, limit):
        return [1] * limit


def follower(grammar: Grammar, cost: Cost | None = None) -> Follower:
    return Follower(grammar, Reasoning(GrammarRef(FREE, "")), cost=cost)


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    fake = SimpleNamespace(thread_time=lambda: now[0], perf_counter=lambda: now[0])
    monkeypatch.setattr("octavo.core.grammar.manager.time", fake)
    return now


def masks_of(followers, drafts=0):
    count = len(followers)
    rows = np.arange(count, dtype=np.int32)
    each, tokens = np.full(count, drafts, np.int32), np.ones(count * drafts, np.int32)
    plan = StepPlan(0, Kind.DECODE, rows=rows, masked=rows, drafts=each, draft_tokens=tokens)
    masks, left = Grammars(None, 32, lambda key, outcome: None).masks(plan, followers)
    return masks.bits[:, 0].tolist(), left


def test_the_loop_makes_no_mask_of_a_dear_grammar_and_keeps_the_one_that_was_dear(clock):
    shared = Cost()
    dear = [follower(Clocked(clock, 5 * DEAR), shared) for _ in range(3)]
    usual = follower(Clocked(clock, USUAL))
    bits, left = masks_of([usual, *dear])
    # The first was a surprise; the others have the same grammar.
    assert (bits, left) == ([2, 2, -1, -1], {2, 3})
    assert dear[0].ready.tolist() == [2]
    assert [one._grammar.filled for one in dear] == [1, 0, 0]
    bits, left = masks_of([usual, dear[0]])
    assert (bits, left) == ([2, 2], set())
    assert dear[0]._grammar.filled == 1


def test_a_step_spends_so_much_on_masks_and_no_more(clock):
    some = [follower(Clocked(clock, DEAR * 0.9)) for _ in range(8)]
    bits, left = masks_of(some)
    assert budget(8) < clock[0] <= budget(8) + DEAR
    assert (bits, left) == ([2, 2] + [-1] * 6, set(range(2, 8)))


def test_windows_of_drafts_have_time_for_each_of_their_masks(clock):
    some = [follower(Clocked(clock, USUAL * 0.9)) for _ in range(4)]
    _, left = masks_of(some, drafts=15)
    assert clock[0] > budget(len(some))
    assert left == set()


def test_what_is_forced_is_not_asked_for_where_it_was_told_late_elsewhere(clock):
    assert follower(Clocked(clock, USUAL), Cost(told=USUAL)).drafts(2) == [1, 1]
    assert follower(Clocked(clock, USUAL), Cost(told=2 * DEAR)).drafts(2) == []


def test_what_is_told_late_twice_is_not_asked_for_again_unless_that_is_rare():
    often, rarely = Telling(), Telling()
    assert often.quick(2 * DEAR)  # once may be the machine's doing
    assert often.quick(USUAL)
    assert not often.quick(2 * DEAR)
    for _ in range(3):
        assert rarely.quick(2 * DEAR)
        assert all(rarely.quick(USUAL) for _ in range(FORGIVEN))


def test_work_takes_what_its_clock_says():
    said: queue.Queue = queue.Queue()
    lane: Lane[int] = Lane(said.put)
    now = iter((3.0, 5.5))
    lane.take(Work(1, lambda: LINE, now.__next__), 0.0)
    assert said.get(timeout=PATIENCE).seconds == 2.5
    lane.close()


@pytest.mark.parametrize("reads", [0, 1])
def test_a_clock_that_raises_costs_its_own_request_only(reads):
    said: queue.Queue = queue.Queue()
    lane: Lane[int] = Lane(said.put)
    left = [0.0] * reads

    def clock():
        if not left:
            raise OSError("no such clock")
        return left.pop()

    lane.take(Work(1, lambda: LINE, clock), 0.0)
    lane.take(Work(2, lambda: LINE), 0.0)
    first, second = (said.get(timeout=PATIENCE) for _ in range(2))
    assert (first.key, second.key) == (1, 2)
    assert first.line is None
    assert "no such clock" in first.fault
    assert second.line is LINE
    lane.close()


def test_a_clock_of_another_thread_counts_its_work_and_not_what_it_waits():
    go, done, end, never = (threading.Event() for _ in range(4))

    def work():
        go.wait(PATIENCE)
        sum(range(100_000))
        done.set()
        end.wait(PATIENCE)

    thread = threading.Thread(target=work)
    _, clock = clocked(thread.start)
    before = clock()
    go.set()
    assert done.wait(PATIENCE)
    assert clock() > before

    def stands_still():
        now = clock()
        never.wait(0.01)
        return clock() == now

    assert any(stands_still() for _ in range(1000))  # as soon as the thread has come to its wait
    end.set()
    thread.join(PATIENCE)


def test_what_is_less_dear_goes_first():
    said: queue.Queue = queue.Queue()
    go, order = threading.Event(), []
    lane: Lane[int] = Lane(said.put)

    def doing(key):
        def run():
            if key == 0:
                assert go.wait(PATIENCE)
            order.append(key)
            return LINE

        return run

    lane.take(Work(0, doing(0)), 0.0)
    for key, expected in ((1, 50.0), (2, 0.0), (3, 10.0)):
        lane.take(Work(key, doing(key)), expected)
    go.set()
    for _ in range(4):
        assert said.get(timeout=PATIENCE).line is LINE
    assert order == [0, 2, 3, 1]
    lane.close()


def test_work_of_who_has_gone_is_not_done():
    said: queue.Queue = queue.Queue()
    lane: Lane[int] = Lane(said.put, gone=lambda key: key == 1)
    done = []
    for key in (1, 2):
        lane.take(Work(key, lambda key=key: done.append(key) or LINE), 0.0)
    assert said.get(timeout=PATIENCE).key == 2
    assert done == [2]
    lane.close()


def test_a_thread_that_does_not_come_back_is_left_and_another_goes_on():
    said: queue.Queue = queue.Queue()
    go, begun = threading.Event(), threading.Event()
    lane: Lane[int] = Lane(said.put, deadline=5.0)

    def hangs():
        begun.set()
        assert go.wait(PATIENCE)
        return LINE

    lane.take(Work(1, hangs), 0.0)
    lane.take(Work(2, lambda: LINE), 0.0)
    assert begun.wait(PATIENCE)
    due = lane.next_deadline()
    assert due is not None
    assert lane.late(due - 1.0) is None
    late = lane.late(due)
    assert late is not None
    assert late.key == 1
    assert "within 5 seconds" in late.fault
    assert said.get(timeout=PATIENCE).key == 2
    go.set()
    lane.take(Work(3, lambda: LINE), 0.0)
    assert said.get(timeout=PATIENCE).key == 3  # of the first nothing was heard
    lane.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_ends_what_it_had_in_hand():
    said: queue.Queue = queue.Queue()

    class Mortal(Work):
        def do(self):
            raise SystemExit  # no hook says a word about it

    lane: Lane[int] = Lane(said.put)
    lane.take(Mortal(1, lambda: LINE), 0.0)
    thread = lane._thread
    assert thread is not None
    thread.join(PATIENCE)
    late = lane.late(0.0)
    assert late is not None
    assert "has died" in late.fault
    lane.take(Work(2, lambda: LINE), 0.0)
    assert said.get(timeout=PATIENCE).key == 2
    lane.close()


def test_where_no_thread_can_be_started_requests_are_told(monkeypatch):
    said: queue.Queue = queue.Queue()
    lane: Lane[int] = Lane(said.put)

    def start(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    lane.take(Work(1, lambda: LINE), 0.0)
    assert "can't start new thread" in said.get(timeout=PATIENCE).fault
    lane.close()
