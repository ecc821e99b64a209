"""Properties of the whole core under random workloads on a fake device that notices every wrong page."""

from hypothesis import given, settings
from hypothesis import strategies as st

from core.workload import Ask, House, check_answers, crowd, drive, houses, workloads
from octavo.wire.plan import Kind
from octavo.wire.reply import FinishReason


@settings(max_examples=60)
@given(houses(), workloads())
def test_everybody_gets_the_tokens_that_they_get_alone(house, asks):
    run = drive(house, asks)
    check_answers(house, asks, run)
    assert all(told.finish is not FinishReason.ERROR for told in run.told.values())


@settings(max_examples=15)
@given(houses(), st.integers(0, 2**32))
def test_crowds_that_share_prefixes_in_tight_pools(house, seed):
    asks = crowd(seed)
    check_answers(house, asks, drive(house, asks))


@settings(max_examples=25)
@given(houses(burst=1), workloads(grammar=True, most=8))
def test_no_mask_is_made_before_its_tokens_are_known(house, asks):
    check_answers(house, asks, drive(house, asks))


@settings(max_examples=40)
@given(houses(), workloads(), st.integers(0, 30), st.sampled_from(["launch", "device", "row"]))
def test_a_fault_fails_only_the_requests_in_it(house, asks, step, kind):
    hit: list[int] = []

    def prepare(worker, core):
        def raising(plan):
            if plan.step <= step < plan.step + plan.repeat and len(plan.rows):
                hit.append(len(plan.rows))
                raise RuntimeError("the device is on fire")

        def faulty(plan):
            try:
                raising(plan)
            except RuntimeError as error:
                return str(error)
            return None

        def one_row(plan):
            if plan.step <= step < plan.step + plan.repeat and len(plan.rows):
                hit.append(1)
                return {len(plan.rows) - 1: "NaN"}
            return {}

        if kind == "launch":
            worker.on_forward = raising
        elif kind == "device":
            worker.fault = faulty
        else:
            worker.row_faults = one_row

    run = drive(house, asks, prepare)
    failed = [told for told in run.told.values() if told.finish is FinishReason.ERROR]
    assert len(failed) <= sum(hit)
    for told in failed:
        assert told.error
        assert "on fire" in told.error or "NaN" in told.error
    for handle, ask in enumerate(asks):
        told, right = run.told[handle], ask.right(house.windows)
        assert told.tokens == right[: len(told.tokens)]
        if told.finish in (FinishReason.STOP, FinishReason.LENGTH):
            assert told.tokens == right


@settings(max_examples=25)
@given(houses(pages=0, rows=5, budget=32, threshold=0, page=4), workloads(most=10))
def test_tiny_pools_preempt_and_still_end(house, asks):
    check_answers(house, asks, drive(house, asks))


def test_tiny_pool_preempts_indeed():
    house = House((None,), 2, 4, 32, 0, "fcfs", 0, 4)
    asks = [Ask([n] * 10, 50, n, 0) for n in range(4)]
    run = drive(house, asks)
    check_answers(house, asks, run)
    assert run.preemptions > 0


def test_bursts_are_used_and_end_with_an_arrival():
    house = House((None,), 1, 4, 32, 0, "fcfs", 40, 8, burst=4)
    repeats: list[tuple[Kind, int]] = []

    def prepare(worker, core):
        worker.on_forward = lambda plan: repeats.append((plan.kind, plan.repeat))

    asks = [Ask([1, 2, 3], 20, 0, 0), Ask([4, 5, 6], 20, 1, 6)]
    check_answers(house, asks, drive(house, asks, prepare))
    assert (Kind.DECODE, 4) in repeats


def test_a_window_that_moves_within_a_page_gives_it_back_in_time():
    # The pool holds one request of the longest length and not a page more.
    house = House((9, None, 3), 2, 4, 13, 3, "priority", 0, 8)
    asks = [Ask([n] * 36, 24, n, 2 * n) for n in range(4)]
    run = drive(house, asks)
    check_answers(house, asks, run)
