"""The runner where nothing waits for the device: the ring, graphs of decode steps, extras behind an event."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from device.double import VOCAB, Asynchronous, Driver, PagedAttention, Request, TinyModel, alone
from device.runner.test_runner import ASKED, drive, requests_of
from octavo.device.batch import buffers
from octavo.device.runner import later
from octavo.device.runner.decode import padded
from octavo.device.runner.ring import FAULTS, Ring
from octavo.wire.arrays import ints
from octavo.wire.plan import GrammarMasks, Kind
from octavo.wire.request import Sampling


class Deaf(TorchDispatchMode):
    """Fails wherever the host would read from the device."""

    ASKS = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert not any(word in str(func) for word in self.ASKS), f"{func} waits for the device"
        if "index" in str(func) and len(args) > 1:
            parts = args[1] if isinstance(args[1], (list, tuple)) else [args[1]]
            assert not any(isinstance(p, torch.Tensor) and p.dtype == torch.bool for p in parts), f"{func} by a mask"
        return func(*args, **(kwargs or {}))


@contextmanager
def deaf():
    with Deaf():
        yield


@pytest.fixture(autouse=True)
def apart(monkeypatch):
    """Host and device have memory of their own, as on a GPU; and kernels take the ways that ask nothing."""
    monkeypatch.setattr(buffers, "shared", lambda device: False)
    monkeypatch.setattr(buffers, "pinned", lambda shape, dtype: torch.empty(tuple(shape), dtype=dtype))
    import octavo.device.batch.blocks as blocks
    import octavo.device.sampling.limits as limits
    import octavo.device.sampling.sampler as sampler
    import octavo.device.sampling.shape as shape
    from octavo.device.kernels import mask, truncate

    monkeypatch.setattr(blocks, "shared", lambda device: False)
    monkeypatch.setattr(sampler, "top_k_p", truncate.top_k_p_rows_torch)
    monkeypatch.setattr(shape, "top_k_p", truncate.top_k_p_rows_torch)
    monkeypatch.setattr(limits, "forbid", mask.forbid_rows_torch)


def driver_of(model=None, platform=None, **options) -> Driver:
    driver = Driver(
        model or TinyModel(),
        backend=PagedAttention(),
        platform=platform or Asynchronous(),
        lead=options.pop("lead", 16),
        eager=options.pop("eager", False),
        **options,
    )
    runner = driver.runner
    forward, sample = runner.forward, runner.sample

    def deaf_forward(plan):
        with deaf():
            forward(plan)

    def deaf_sample(masks):
        with deaf():
            return sample(masks)

    runner.forward, runner.sample = deaf_forward, deaf_sample
    return driver


@settings(max_examples=3)
@given(st.integers(0, 2**31), st.sampled_from((1, 4, 16)), st.sampled_from((None, 5)))
def test_any_schedule_says_what_each_says_alone(seed, page, window):
    model = TinyModel(window=window)
    with pytest.MonkeyPatch.context() as real:
        real.setattr(buffers, "shared", lambda device: True)
        import octavo.device.batch.blocks as blocks

        real.setattr(blocks, "shared", lambda device: True)
        expected = [alone(r, model=model) for r in requests_of(seed)]
    rng = np.random.default_rng(seed)
    for options in ({}, {"preempt": 0.15}, {"depth": 2}, {"burst": 4}, {"depth": 3, "burst": 3}):
        for eager in (False, True):
            requests = requests_of(seed)
            drive(driver_of(model, rows=4, page=page, seed=seed, eager=eager), requests, rng, **options)
            assert [r.said for r in requests] == expected, options


def test_graphs_are_made_on_the_second_use_of_a_size_and_serve_from_then_on():
    platform = Asynchronous()
    driver = driver_of(platform=platform)
    requests = [Request([i, 2, 3], 40, Sampling(seed=i, **ASKED[i % 2])) for i in range(3)]
    for request in requests:
        driver.admit(request)
    driver.run([(request, 3) for request in requests])
    assert (platform.captured, platform.replayed) == (0, 0)
    again = [Request([i, 2, 3], 40, Sampling(seed=i, **ASKED[i % 2])) for i in range(3)]
    for request in again:
        driver.admit(request)
    driver.run([(request, 3) for request in again])
    assert (platform.captured, platform.replayed) == (2, 2)  # a body of tokens, a tail of rows
    platform.captured = platform.replayed = 0
    for count in (3, 3, 3, 2, 2, 3):
        driver.run([(request, 1) for request in requests[:count]])
    assert padded(3) == 4
    # sizes 4 and 2: a body each; tails: of two kinds of draw at most
    assert platform.captured == 4
    assert platform.replayed == 2 * 4


@pytest.mark.parametrize("eager", [False, True])
def test_rows_that_end_inside_a_burst_freeze_and_the_others_go_on(eager):
    """One at its limit, one at a stop id, one to the end; their rows serve others afterwards."""
    platform = Asynchronous()
    driver = driver_of(platform=platform, rows=4, eager=eager)

    def started(seed: int, limit: int, stops=()) -> Request:
        request = Request([seed, 2, 3], limit, Sampling(seed=seed, temperature=0.7), stops)
        driver.admit(request)
        return request

    said = [started(seed, 20) for seed in (4, 5, 6)]
    driver.run([(one, 3) for one in said])
    while not all(one.done for one in said):
        driver.run([(one, 1) for one in said if not one.done])
    third = said[1].said[2]
    for one in said:
        driver.release(one)
    for _ in range(3):  # as it is, captured, replayed
        again = [started(4, 5), started(5, 20, (third,)), started(6, 20)]
        driver.run([(one, 3) for one in again])
        results = driver.run([(one, 1) for one in again], repeat=8)
        places = {request: at for at, request in enumerate(driver.order)}
        counts = [[int(result.counts[places[one]]) for result in results] for one in again]
        stopped = said[1].said.index(third)
        assert counts == [[1] + [0] * 7, [1] * stopped + [0] * (8 - stopped), [1] * 8]
        assert [result.step for result in results] == list(range(results[0].step, results[0].step + 8))
        assert again[0].said == said[0].said[:2]
        assert again[1].said == said[1].said[: stopped + 1]
        assert again[2].said == said[2].said[:9]
        for one, known in zip(again, (4, 3 + stopped, 11), strict=True):
            assert int(driver.runner.state.computed.tensor[one.row]) == known
            driver.release(one)
    assert eager or platform.replayed >= 2 * 8


def test_what_is_made_ready_before_the_first_request_changes_nothing():
    request, other = requests_of(9, 1)[0], requests_of(9, 1)[0]
    cold = driver_of()
    cold.admit(request)
    platform = Asynchronous()
    warm = driver_of(platform=platform)
    warm.runner.warm([1, 2, 8])
    assert platform.captured == 9  # a body and two tails each
    warm.admit(other)
    for driver, one in ((cold, request), (warm, other)):
        while not one.done:
            driver.run([(one, max(1, len(one.tokens) - one.planned))])
    assert request.said == other.said
    assert warm.runner.state.computed.tensor[-1] == 0
    assert not warm.runner.state.alive.tensor[-1]


def test_a_size_that_could_not_be_made_ready_harms_no_step():
    request, other = requests_of(9, 1)[0], requests_of(9, 1)[0]
    driver = driver_of()
    driver.admit(request)
    platform = Asynchronous()
    fails = driver_of(platform=platform)

    def capture(run):
        run()
        raise MemoryError("no room for a graph")

    with pytest.MonkeyPatch.context() as short:
        short.setattr(platform, "capture", capture)
        with pytest.raises(MemoryError):
            fails.runner.warm([1, 2, 8])
    fails.admit(other)
    for one_driver, one in ((driver, request), (fails, other)):
        while not one.done:
            one_driver.run([(one, max(1, len(one.tokens) - one.planned))])
    assert request.said == other.said


def test_a_piece_of_prompt_that_looks_like_a_decode_is_not_replayed_as_one():
    """One token for every row, and all of them prompt: the shapes are those of a decode step."""
    platform = Asynchronous()
    driver = driver_of(platform=platform)
    request = Request([5, 6, 7, 8, 9, 10], 12, Sampling(seed=1, temperature=0.0))
    driver.admit(request)
    for _ in range(5):
        driver.run([(request, 1)])
        assert not request.said
    driver.run([(request, 1)])
    decodes = driver.runner._decode._sizes
    assert not decodes
    assert platform.replayed
    while not request.done:
        driver.run([(request, 1)])
    assert list(decodes) == [1]
    calls = decodes[1].body._calls
    again = Request([5, 6, 7, 8, 9, 10], 12, Sampling(seed=1, temperature=0.0))
    driver.admit(again)
    for _ in range(6):
        plan, order, tickets = driver.launch([(again, 1)])
        assert plan.kind == Kind.MIXED
        driver.retire(plan, order, tickets)
    assert decodes[1].body._calls == calls
    while not again.done:
        driver.run([(again, 1)])
    assert again.said == request.said


def test_a_row_that_is_not_a_number_fails_alone_and_leaves_clean_pages():
    model = TinyModel()
    good = requests_of(5, 1)[0]
    good.prompt[:] = [t % 90 for t in good.prompt]
    driver = driver_of(model, rows=2, length=50)
    driver.admit(good)
    while not good.done:
        driver.run([(good, max(1, len(good.tokens) - good.planned))])
    expected, good.said, good.done, good.row = good.said, [], False, -1
    model.spoiled = 96
    bad = Request([1, 2, 96, 4, 5], 20, Sampling(seed=1))
    driver = driver_of(model, rows=2, length=50)
    driver.admit(good)
    driver.admit(bad)
    driver.run([(good, len(good.prompt)), (bad, 5)])
    assert bad.fault == "the model gave logits that are not numbers"
    driver.release(bad)
    while not good.done:
        driver.run([(good, 1)])
    assert good.said == expected
    for layer in driver.runner._bound.values():
        assert layer.cache.data[1:].isfinite().all()


def test_a_mask_that_allows_nothing_is_a_fault_of_its_row():
    driver = driver_of()
    first, second = (Request([1, 2, 3], 9, Sampling(seed=i, temperature=0.0)) for i in range(2))
    driver.admit(first)
    driver.admit(second)
    driver.run([(first, 3), (second, 3)])
    results = driver.run([(first, 1), (second, 1)], masks=GrammarMasks(ints([1]), np.zeros((1, 4), np.int32)))
    assert list(results[0].row_faults.values()) == ["no token is allowed here"]
    assert sorted(FAULTS.values())[0] == results[0].row_faults[1]


def test_a_step_that_raises_is_a_fault_and_the_ring_goes_on():
    driver = driver_of()
    request = requests_of(5, 1)[0]
    request.limit = len(request.prompt) + 5
    driver.admit(request)
    plan = driver.plan([(request, len(request.prompt))])
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(driver.runner.model, "logits", lambda hidden: 1 / 0)
        driver.runner.forward(plan)
        (ticket,) = driver.runner.sample(None)
    assert ticket.wait(240.0).fault == "ZeroDivisionError: division by zero"
    driver.runner.forward(plan)
    (ticket,) = driver.runner.sample(None)
    assert ticket.wait(240.0).counts.tolist() == [1]


@pytest.mark.parametrize("pieces", [False, True])
def test_log_probabilities_come_later_and_are_the_same(monkeypatch, pieces):
    def asked():
        more = {"logprobs": 3, "prompt_logprobs": 2}
        return [
            *requests_of(2, 4, **more),
            Request([4, 5], 6, Sampling(seed=1, logprobs=0, logprob_ids=b"\1\0\0\0\7\0\0\0")),
        ]

    if pieces:
        monkeypatch.setattr(later, "LOGITS", 2 * VOCAB)
    found = []
    for make in (lambda: Driver(TinyModel(), rows=5), lambda: driver_of(rows=5)):
        if not found:
            with pytest.MonkeyPatch.context() as real:
                real.setattr(buffers, "shared", lambda device: True)
                import octavo.device.batch.blocks as blocks

                real.setattr(blocks, "shared", lambda device: True)
                requests = asked()
                drive(make(), requests, np.random.default_rng(3))
        else:
            requests = asked()
            drive(make(), requests, np.random.default_rng(3))
        found.append(requests)
    for one, other in zip(*found, strict=True):
        assert one.said == other.said
        for (ids, values, rank), (ids2, values2, rank2) in zip(one.logprobs, other.logprobs, strict=True):
            width = min(len(ids), len(ids2))
            assert ids[:width].tolist() == ids2[:width].tolist()
            np.testing.assert_allclose(values[:width], values2[:width], rtol=1e-4, atol=1e-5)
            assert rank == rank2
        for (start, a), (start2, b) in zip(one.prompt_logprobs, other.prompt_logprobs, strict=True):
            assert start == start2
            assert a.ids.tolist() == b.ids.tolist()
            np.testing.assert_allclose(a.values, b.values, rtol=1e-4, atol=1e-5)


def test_tags_wrap_and_words_of_another_step_are_none():
    ring = Ring(Asynchronous(), rows=4, slots=2)
    ring._next = (1 << 30) - 2
    ring.resync()
    one = torch.ones(3, dtype=torch.int64)
    for step in range(5):
        words = ring.pack(one * step, one, one.bool(), one.float())
        tag = ring.publish(words, 3)
        assert ring.look(tag, 3).tolist() == [step] * 3
        assert ring.look(tag + 2, 3) is None


def test_a_ticket_says_when_nothing_came():
    driver = driver_of()
    request = requests_of(5, 1)[0]
    driver.admit(request)
    _, _, (ticket,) = driver.launch([(request, len(request.prompt))])
    ticket._tag += 1
    driver.runner._platform.idle = lambda: False
    with pytest.raises(TimeoutError, match=r"step 0 did not end within 0\.01 seconds"):
        ticket.wait(0.01)
