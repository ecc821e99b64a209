"""Bursts: several decode steps of one plan say what single steps say, and somebody who comes ends them."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from core.workload import Ask, House, check_answers, drive, houses, workloads
from octavo.core.scheduler.burst import QUIET, Pace, repeats
from octavo.testing.cores import hear
from octavo.wire.arrays import ints
from octavo.wire.plan import REPEAT, Kind, StepPlan
from octavo.wire.reply import AbortReason, FinishReason

DEEP = st.sampled_from([1, 2])


class Watch:
    """What a worker is told to launch, and what it gives back."""

    def __init__(self) -> None:
        self.plans: list[StepPlan] = []
        self.tickets: list[int] = []

    def __call__(self, worker, core) -> None:
        worker.on_forward = self.plans.append
        sample = worker.sample

        def sampled(masks):
            tickets = sample(masks)
            self.tickets += [ticket.step for ticket in tickets]
            return tickets

        worker.sample = sampled

    @property
    def repeats(self) -> list[int]:
        return [plan.repeat for plan in self.plans if plan.kind == Kind.DECODE]


@settings(max_examples=50)
@given(houses(depth=DEEP, burst=st.integers(2, REPEAT)), workloads(grammar=True))
def test_bursts_of_any_length_say_what_single_steps_say(house, asks):
    watch = Watch()
    run = drive(house, asks, watch)
    check_answers(house, asks, run)
    assert watch.tickets == list(range(len(watch.tickets))), "each sub-step has its own ticket, in order"
    assert len(watch.tickets) == sum(plan.repeat for plan in watch.plans)
    for plan in watch.plans:
        assert plan.repeat == 1 or not len(plan.masked)
    single = drive(House(**{**vars(house), "burst": 1}), asks)
    for handle, told in run.told.items():
        other = single.told[handle]
        least = min(len(told.tokens), len(other.tokens))
        assert told.tokens[:least] == other.tokens[:least]
        if FinishReason.ABORT not in (told.finish, other.finish):
            assert (told.tokens, told.finish, told.stop) == (other.tokens, other.finish, other.stop)


@settings(max_examples=40)
@given(houses(depth=DEEP, burst=st.integers(2, REPEAT)), workloads())
def test_every_sub_step_streams_its_own_tokens(house, asks):
    """Whoever wants each token hears of one a reply, however many steps were launched at once."""
    counts: list[int] = []

    def prepare(worker, core):
        step = core.step

        def stepped():
            replies = step()
            for reply in replies:
                each = [asks[handle].every == 1 for handle in reply.handles.tolist()]
                counts.extend(reply.counts[np.array(each, bool)].tolist())
            return replies

        core.step = stepped

    check_answers(house, asks, drive(house, asks, prepare))
    assert set(counts) <= {1}


@settings(max_examples=60)
@given(houses(depth=DEEP, burst=st.integers(2, REPEAT), pages=st.integers(0, 3), page=4), workloads(most=10))
def test_nobody_goes_for_a_burst(house, asks):
    """No row is preempted to make room for more than the next token of each."""

    def prepare(worker, core):
        planner = core.scheduler._planner
        choose = planner._repeat

        def watched(rows, now):
            before = core.scheduler.book.counters.preemptions
            chosen = choose(rows, now)
            assert core.scheduler.book.counters.preemptions == before
            return chosen

        planner._repeat = watched

    check_answers(house, asks, drive(house, asks, prepare))


class Steady(Pace):
    """Wants the same number of steps whatever happens."""

    def __init__(self, steps: int):
        super().__init__(0.0)
        self._steps = steps

    def fit(self, now: float) -> int:
        return self._steps


def begun(depth: int, asks: list[Ask], steps: int = 4, **more):
    """A core in the middle of its first burst, and what it launches."""
    house = House(**{**vars(House((None,), depth, 4, 32, 0, "fcfs", 60, 8, burst=steps)), **more})
    core = house.core(Steady(steps))
    core.start()
    watch = Watch()
    watch(core.worker, core)
    core.add([ask.wire(handle) for handle, ask in enumerate(asks)])
    told: dict = {}
    while max(watch.repeats, default=1) < steps:
        hear(core.poll(), told)
    return core, watch, told


def finish(core, told, asks: list[Ask]) -> None:
    for _ in range(400):
        if not (core.scheduler.unfinished or core.outstanding or core.runnable):
            break
        hear(core.poll(), told)
    for handle, ask in enumerate(asks):
        right = ask.right((None,))
        assert told[handle].tokens == right if told[handle].finish is not FinishReason.ABORT else right[:9]
    core.scheduler.book.check()
    assert core.scheduler.book.kv.pool.free == core.scheduler.book.kv.pool.pages - 1


@given(st.sampled_from([1, 2]), st.integers(0, 12))
@settings(max_examples=20)
def test_who_comes_waits_for_what_is_launched_and_no_more(depth, when):
    asks = [Ask([1, 2, 3], 40, 0, 0), Ask([4, 5, 6], 40, 1, 0), Ask([7, 8], 9, 2, 0)]
    core, watch, told = begun(depth, asks[:2])
    for _ in range(when):
        hear(core.poll(), told)
    launched = len(watch.plans)
    assert core.outstanding <= 4 + depth - 1
    core.add([asks[2].wire(2)])
    while len(watch.plans) == launched:
        before = core.outstanding
        hear(core.poll(), told)
        assert core.outstanding < before or len(watch.plans) > launched
    assert any(new.row for new in watch.plans[launched].new), "the first plan behind the burst has the newcomer"
    finish(core, told, asks)


@given(st.sampled_from([1, 2]))
def test_an_abort_is_heard_at_once_and_ends_the_row_with_the_next_plan(depth):
    asks = [Ask([1, 2, 3], 40, 0, 0), Ask([4, 5, 6], 40, 1, 0)]
    core, watch, told = begun(depth, asks)
    row = next(request.row for request in core.scheduler.book.running if request.wire.handle == 1)
    launched = len(watch.plans)
    core.abort([1], AbortReason.CLIENT)
    hear(core.poll(), told)
    assert told[1].finish is FinishReason.ABORT
    while len(watch.plans) == launched:
        hear(core.poll(), told)
    assert row in watch.plans[launched].freed
    assert row not in watch.plans[launched].rows
    finish(core, told, asks)


@given(st.integers(1, 20), st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), min_size=1))
def test_the_least_of_all_reasons_decides(fit, rows):
    left, room = ints([one for one, _ in rows]), ints([other for _, other in rows])
    count = repeats(fit, left, room)
    assert 1 <= count <= max(fit, 1)
    if count > 1:
        assert count <= left.max(), "somebody is alive to the end of it"
        assert (np.minimum(count, left) <= room).all(), "every token has a page"
    if count < fit:
        more = count + 1
        assert more > left.max() or (np.minimum(more, left) > room).any(), "one more would have been too many"


def plan_of(step: int, repeat: int = 1, kind: Kind = Kind.DECODE) -> StepPlan:
    return StepPlan(step, kind, repeat=repeat)


def test_steps_are_measured_as_they_come_back():
    pace = Pace(0.004)
    assert pace.fit(1.0) == 1, "nothing is known yet"
    pace.launched(plan_of(0, kind=Kind.MIXED), 1.0)
    pace.launched(plan_of(1), 1.001)
    pace.retired(0, 1.1)
    assert pace.step == 0.0, "a prompt is no decode step"
    assert pace.any > 0.0
    pace.retired(1, 1.1005)
    assert abs(pace.step - 0.0005) < 1e-9, "from the end of the one before"
    assert pace.fit(2.0) == 8
    for _ in range(40):  # slower ones; planned and computed in turn
        pace.launched(plan_of(2, 4), 3.0)
        for part in range(4):
            pace.retired(2 + part, 3.008 if part == 3 else 3.0)
        pace._came = 0.0
    assert pace.fit(4.0) == 2
    assert Pace(0.0).fit(4.0) == 1


def test_a_burst_is_never_longer_than_the_device_keeps_results_for():
    pace = Pace(1.0)
    pace.launched(plan_of(0), 1.0)
    pace.retired(0, 1.0001)
    assert pace.fit(2.0) == REPEAT


def test_behind_an_arrival_the_next_is_expected():
    pace = Pace(0.004)
    pace.launched(plan_of(0), 1.0)
    pace.retired(0, 1.001)
    pace.arrived(5.0)
    assert pace.fit(5.0 + 0.9 * QUIET) == 1
    assert pace.fit(5.0 + 1.1 * QUIET) == 4
