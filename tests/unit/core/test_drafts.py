"""Drafts under random workloads: whoever guesses, and however badly, everybody says what they say alone."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.workload import Ask, House, check_answers, crowd, drive, houses, workloads
from octavo.core.scheduler.request import Request
from octavo.core.scheduler.trust import Trust
from octavo.wire.reply import FinishReason


class Oracle:
    """Knows what each request will say, and is wrong about so many of its tokens."""

    def __init__(self, house: House, asks: list, wrong: float, seed: int):
        self.right = {handle: [*ask.prompt, *ask.right(house.windows)] for handle, ask in enumerate(asks)}
        self.wrong, self.random = wrong, random.Random(seed)
        self.guessed = 0

    def propose(self, request: Request, tokens, most: int) -> list[int]:
        known = self.right[request.wire.handle]
        assert known[: len(tokens)] == tokens.tolist()
        drafts = known[len(tokens) : len(tokens) + self.random.randint(0, most)]
        # behind its end a request would say something, but nobody knows what
        drafts += [self.random.randrange(17) for _ in range(self.random.randint(0, most - len(drafts)))]
        self.guessed += len(drafts)
        return [self.random.randrange(17) if self.random.random() < self.wrong else token for token in drafts]


def driven(house, asks, wrong=0.2, seed=0, prepare=None):
    oracle = Oracle(house, asks, wrong, seed)

    def guess(worker, core):
        core.scheduler._planner.drafts.drafters = [oracle]
        if prepare is not None:
            prepare(worker, core)

    return drive(house, asks, guess), oracle


@settings(max_examples=25)
@given(houses(drafts=st.integers(1, 5)), workloads(), st.sampled_from([0.0, 0.2, 0.9]), st.integers(0, 99))
def test_with_drafts_everybody_gets_the_tokens_that_they_get_alone(house, asks, wrong, seed):
    run, _ = driven(house, asks, wrong, seed)
    check_answers(house, asks, run)


@settings(max_examples=8)
@given(houses(drafts=st.integers(1, 5), depth=1), st.integers(0, 2**32))
def test_crowds_with_drafts_in_tight_pools(house, seed):
    asks = crowd(seed)
    run, _ = driven(house, asks, 0.1, seed)
    check_answers(house, asks, run)


@settings(max_examples=25)
@given(houses(drafts=st.integers(1, 5), burst=1), workloads(grammar=True, most=8), st.sampled_from([0.0, 0.3]))
def test_every_place_of_a_window_has_a_mask_of_its_own(house, asks, wrong):
    run, _ = driven(house, asks, wrong)
    check_answers(house, asks, run)


@settings(max_examples=20)
@given(houses(drafts=st.integers(1, 5)), workloads(), st.integers(0, 20), st.sampled_from(["launch", "device", "row"]))
def test_a_fault_in_a_step_with_drafts_fails_only_the_requests_in_it(house, asks, step, kind):
    hit: list[int] = []

    def prepare(worker, core):
        def bad(plan):
            return plan.step <= step < plan.step + plan.repeat and len(plan.draft_tokens)

        def raising(plan):
            if bad(plan):
                hit.append(len(plan.rows))
                raise RuntimeError("on fire")

        def one_row(plan):
            if not bad(plan):
                return {}
            hit.append(1)
            return {int(plan.drafts.argmax()): "NaN"}

        if kind == "launch":
            worker.on_forward = raising
        elif kind == "device":
            worker.fault = lambda plan: hit.append(len(plan.rows)) or "on fire" if bad(plan) else None
        else:
            worker.row_faults = one_row

    run, _ = driven(house, asks, 0.2, prepare=prepare)
    failed = [told for told in run.told.values() if told.finish is FinishReason.ERROR]
    assert len(failed) <= sum(hit)
    for handle, ask in enumerate(asks):
        told, right = run.told[handle], ask.right(house.windows)
        assert told.tokens == right[: len(told.tokens)]
        if told.finish in (FinishReason.STOP, FinishReason.LENGTH):
            assert told.tokens == right


def one_house(**values) -> House:
    usual = {"windows": (None,), "depth": 1, "rows": 4, "budget": 32, "threshold": 0, "policy": "fcfs", "pages": 40}
    return House(**(usual | {"page": 4, "drafts": 4} | values))


def plans_of(house: House, asks: list[Ask], wrong: float = 0.0):
    plans = []

    def keep(worker, core):
        worker.on_forward = plans.append

    run, _ = driven(house, asks, wrong, prepare=keep)
    check_answers(house, asks, run)
    return plans, run


def test_right_drafts_take_fewer_steps_and_are_counted():
    asks = [Ask([1, 2, 3], 40, 5, 0)]
    without = drive(one_house(drafts=0), asks).worker.plans
    plans, run = plans_of(one_house(), asks)
    assert len(plans) < without
    accepted = [0] * 4
    for report in run.reports:
        for place, count in enumerate(report.accepted):
            accepted[place] += count
    assert sum(report.draft_tokens for report in run.reports) == sum(len(plan.draft_tokens) for plan in plans)
    windows = sum(int((plan.drafts > 0).sum()) for plan in plans)
    assert sum(report.drafts for report in run.reports) == windows
    assert windows >= accepted[0] >= accepted[1] >= accepted[2] >= accepted[3] > 0
    assert run.generated == 40 == 1 + sum(accepted) + windows + sum(not len(plan.draft_tokens) for plan in plans[1:-1])


def test_wrong_drafts_cost_no_step():
    asks = [Ask([n, 2, 3], 30, n, 0) for n in range(3)]
    plans, _ = plans_of(one_house(), asks, wrong=1.1)
    assert sum(len(plan.draft_tokens) for plan in plans) > 0
    assert len(plans) <= drive(one_house(drafts=0), asks).worker.plans


def test_drafts_take_what_the_step_has_left():
    """Prompts come first: a step has no more tokens for drafts than nobody else wants."""
    asks = [Ask([1, 2, 3], 30, 5, 0), *(Ask([n] * 30, 10, n, 4 + n) for n in range(5))]
    plans, _ = plans_of(one_house(budget=8, rows=6), asks)
    assert any(plan.drafts.any() and plan.known.any() for plan in plans)
    assert any(plan.known.any() and plan.known.sum() < plan.tokens and not plan.drafts.any() for plan in plans)


def test_nobody_is_preempted_for_drafts():
    house = one_house(pages=0, rows=4)
    asks = [Ask([n] * 8, 20, n, 0) for n in range(4)]
    with_drafts, _ = driven(house, asks, 0.0)
    check_answers(house, asks, with_drafts)
    without = replace(house, drafts=0)
    assert with_drafts.preemptions <= drive(without, asks).preemptions


def test_a_row_with_a_step_in_flight_has_no_drafts():
    """With two steps in flight, whoever is in one gets none, and while drafts are out their row is in no other."""
    asks = [Ask([n, 2, 3], 20, n, 0) for n in range(3)]
    house = one_house(depth=2)
    out: set[int] = set()

    def prepare(worker, core):
        update = core.scheduler.update

        def launched(plan):
            assert not out.intersection(plan.rows.tolist())
            out.update(plan.rows[plan.drafts > 0].tolist())

        def retired(plan, *results):
            out.difference_update(plan.rows[plan.drafts > 0].tolist())
            update(plan, *results)

        worker.on_forward, core.scheduler.update = launched, retired

    run, _ = driven(house, asks, 0.0, prepare=prepare)
    check_answers(house, asks, run)


def test_only_verified_tokens_reach_the_prefix_cache():
    """Who comes later and shares a prefix with prompt and answer reads pages that hold exactly that."""
    first = Ask([1, 2, 3, 4], 30, 5, 0)
    house = one_house(windows=(None, 6))
    said = first.right(house.windows)
    later = [Ask([*first.prompt, *said[:n], 7], 8, n, 60 + n) for n in (10, 20, 29)]
    run, _ = driven(house, [first, *later], 0.4)
    check_answers(house, [first, *later], run)
    assert all(run.told[handle].cached >= 8 for handle in (1, 2, 3))
    assert run.told[3].cached == 32


def trusting(core, asked=False):
    drafts = core.scheduler._planner.drafts
    drafts._thrifty = not asked
    return drafts


@settings(max_examples=30)
@given(houses(drafts=st.integers(1, 5)), workloads(), st.sampled_from([0.0, 0.3, 1.1]), st.integers(0, 99))
def test_with_only_drafts_that_pay_everybody_gets_the_tokens_that_they_get_alone(house, asks, wrong, seed):
    run, _ = driven(house, asks, wrong, seed, prepare=lambda worker, core: trusting(core))
    check_answers(house, asks, run)


def test_who_is_wrong_is_tried_less_and_never_more_among_many():
    tried = {}
    for thrifty in (False, True):
        for rows in (1, 12):
            asks = [Ask([n, 2, 3], 60, n, 0) for n in range(rows)]
            house = one_house(rows=12, budget=256, pages=0)
            cores = []

            def prepare(worker, core, on=thrifty, cores=cores):
                cores.append(core)
                return trusting(core, not on)

            run, _ = driven(house, asks, 1.1, prepare=prepare)
            check_answers(house, asks, run)
            tried[thrifty, rows] = cores[0].scheduler.book.drafted / rows
    assert 0 < tried[True, 12] < tried[True, 1] <= tried[False, 1]
    assert tried[True, 12] < tried[False, 12] / 4


@given(st.lists(st.tuples(st.integers(1, 16), st.integers(0, 16)), max_size=40), st.integers(1, 256))
def test_trust_falls_with_wrong_drafts_and_comes_back(heard, rows):
    trust = Trust()
    assert trust.most(rows, 16) == 16
    assert 1 <= trust.first(rows) <= max(1, 16 // rows)  # all that run may be new
    for drafts, right in heard:
        trust.heard(drafts, min(right, drafts))
        assert trust.most(rows + 1, 16) <= trust.most(rows, 16) <= 16
    for _ in range(64):
        before = trust.most(rows, 16)
        trust.heard(4, 0)
        assert trust.most(rows, 16) <= before
    for _ in range(20_000):
        if trust.most(rows, 16):
            break
        trust.passed()
    assert trust.most(rows, 16) > 0


@pytest.mark.parametrize("rows", [1, 8, 32, 500])
def test_who_is_right_soon_has_all_that_there_are(rows):
    trust, windows = Trust(), 0
    while (most := min(trust.most(rows, 16), trust.first(rows))) < 16:
        trust.heard(most, most)
        windows += 1
    assert windows <= 3


@given(st.integers(1, 256), st.integers(1, 16), st.lists(st.booleans(), max_size=30))
def test_drafts_that_pay_are_worth_something_together(rows, most, heard):
    trust = Trust()
    for right in heard:
        trust.heard(1, right)
    pays = trust.most(rows, most)
    assert trust.worth(rows, pays) >= -1e-9
    assert pays == most or trust.worth(rows, pays + 1) <= trust.worth(rows, pays) + 1e-9


def test_right_drafts_are_made_among_any_number_of_rows():
    trust = Trust()
    for _ in range(50):
        trust.heard(3, 3)
    assert trust.most(100_000, 9) == 9
