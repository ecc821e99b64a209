"""The runner on a tiny model: however a request is cut, batched, preempted or pipelined, it says the same."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from device.double import VOCAB, Driver, Request, TinyModel, alone
from octavo.device.runner import runner as runner_module
from octavo.wire.arrays import ints, pack_tokens
from octavo.wire.plan import GrammarMasks, Kind, StepPlan
from octavo.wire.request import Sampling

#: How a few requests sample, between them with every stage.
ASKED = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_k": 9, "top_p": 0.9},
    {"temperature": 1.2, "repetition_penalty": 1.3, "frequency_penalty": 0.2},
    {"temperature": 0.0, "bad_words": ((3,), (5, 8)), "presence_penalty": 0.5},
)


def requests_of(seed, count=5, **more):
    rng = np.random.default_rng(seed)
    made = []
    for i in range(count):
        prompt = rng.integers(0, VOCAB, rng.integers(1, 25)).tolist()
        sampling = Sampling(seed=int(rng.integers(2**60)), **ASKED[i % len(ASKED)], **more)
        stops = tuple(rng.integers(0, VOCAB, 3).tolist())
        made.append(
            Request(
                prompt, len(prompt) + int(rng.integers(1, 14)), sampling, stops, len(prompt) + int(rng.integers(0, 5))
            )
        )
    return made


def drive(driver, requests, rng, depth=1, burst=1, preempt=0.0):
    """Random schedules until all is said: arrivals, chunks, batches, preemptions, steps in flight."""
    waiting, live, inflight = list(requests), [], []
    while waiting or live or inflight:
        while waiting and driver.free_rows and (rng.random() < 0.5 or not live):
            live.append(waiting.pop(0))
            driver.admit(live[-1])
        if live and rng.random() < preempt and not inflight:
            victim = live.pop(int(rng.integers(len(live))))
            driver.preempt(victim)
            waiting.insert(0, victim)
        takes = []
        for request in live:
            left = request.known - request.planned
            if request.done or request.planned >= request.limit - 1 or rng.random() < 0.2:
                continue
            takes.append((request, int(rng.integers(1, left + 1)) if left > 0 else 1))
        repeat = int(rng.integers(1, burst + 1)) if all(r.planned >= r.known for r, _ in takes) else 1
        # As the scheduler has it: somebody is alive to the end of a burst, others may end in it.
        if takes:
            repeat = min(repeat, max(r.limit - 1 - r.planned for r, _ in takes))
            inflight.append(driver.launch(takes, repeat))
        while inflight and (len(inflight) >= depth or not takes):
            driver.retire(*inflight.pop(0))
            live_done = [r for r in live if r.done]
            if live_done and not inflight:
                for request in live_done:
                    driver.release(request)
                live = [r for r in live if not r.done]


@settings(max_examples=12)
@given(st.integers(0, 2**31), st.sampled_from((1, 2, 4, 16)), st.sampled_from((None, 5)))
def test_any_schedule_says_what_each_says_alone(seed, page, window):
    model = TinyModel(window=window)
    expected = [alone(r, model=model) for r in requests_of(seed)]
    assert all(expected)
    rng = np.random.default_rng(seed)
    for options in ({}, {"preempt": 0.15}, {"depth": 2}, {"burst": 4}, {"depth": 3, "burst": 3}):
        requests = requests_of(seed)
        drive(Driver(model, rows=4, page=page, seed=seed), requests, rng, **options)
        assert [r.said for r in requests] == expected, options


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 100])
def test_chunked_is_whole_is_decode(chunk):
    for whole, cut in zip(requests_of(1), requests_of(1), strict=True):
        assert alone(whole) == alone(cut, chunk=chunk)


def test_a_row_that_ends_inside_a_burst_freezes():
    request = requests_of(3, 1)[0]
    request.limit = len(request.prompt) + 3
    driver = Driver(TinyModel())
    driver.admit(request)
    driver.run([(request, len(request.prompt))])
    results = driver.run([(request, 1)], repeat=6)
    assert [int(r.counts[0]) for r in results] == [1, 1, 0, 0, 0, 0]
    assert [r.step for r in results] == list(range(1, 7))
    assert int(driver.runner.state.computed.tensor[request.row]) == request.limit - 1


def test_a_killed_row_says_nothing_more():
    request = requests_of(3, 1)[0]
    request.limit = 60
    driver = Driver(TinyModel())
    driver.admit(request)
    driver.run([(request, len(request.prompt))])
    plan = driver.plan([(request, 1)])
    plan.killed = ints([request.row])
    driver.runner.forward(plan)
    (ticket,) = driver.runner.sample(None)
    assert ticket.ready()
    assert ticket.wait().counts.tolist() == [0]


def test_a_plan_without_rows_gives_one_empty_ticket():
    driver = Driver(TinyModel())
    driver.runner.forward(StepPlan(9, Kind.NONE, zero=ints([1, 2])))
    (ticket,) = driver.runner.sample(None)
    result = ticket.wait(0.1)
    assert (result.step, result.fault, result.counts.tolist()) == (9, None, [])
    assert ticket.extras().logprobs is None


def test_masks_reach_the_rows_that_they_name():
    first, second = (Request([1, 2, 3], 9, Sampling(seed=i, temperature=0.0)) for i in range(2))
    driver = Driver(TinyModel())
    driver.admit(first)
    driver.admit(second)
    bits = np.zeros((1, 4), np.int32)
    bits[0, 2] = 1 << 5
    driver.run([(first, 2), (second, 3)])
    assert not first.said
    driver.run([(first, 1), (second, 1)], masks=GrammarMasks(ints([0]), bits))
    assert first.said == [69] or second.said[1:] == [69]


def test_a_row_that_is_not_a_number_fails_alone_and_leaves_clean_pages():
    model = TinyModel()
    model.spoiled = 96
    good, later = requests_of(5, 1)[0], requests_of(5, 1)[0]
    good.prompt[:] = [t % 90 for t in good.prompt]
    expected = alone(Request(good.prompt, good.limit, good.sampling, good.stops, good.min_length), model=model)
    bad = Request([1, 2, 96, 4, 5], 20, Sampling(seed=1))
    driver = Driver(model, rows=2, length=50)
    driver.admit(good)
    driver.admit(bad)
    driver.run([(good, len(good.prompt)), (bad, 5)])
    assert bad.fault == "the model gave logits that are not numbers"
    driver.release(bad)
    while not good.done:
        driver.run([(good, 1)])
    assert good.said == expected
    for layer in driver.runner._bound.values():
        assert layer.cache.data.isfinite().all()
    assert later.fault is None


def test_a_step_that_raises_is_a_fault_of_its_tickets_and_the_next_step_runs(monkeypatch):
    request = requests_of(5, 1)[0]
    driver = Driver(TinyModel())
    driver.admit(request)
    plan = driver.plan([(request, len(request.prompt))])
    monkeypatch.setattr(driver.runner.model, "logits", lambda hidden: 1 / 0)
    driver.runner.forward(plan)
    (ticket,) = driver.runner.sample(None)
    assert ticket.wait().fault == "ZeroDivisionError: division by zero"
    assert ticket.wait().counts.tolist() == [0]
    monkeypatch.undo()
    driver.runner.forward(plan)
    (ticket,) = driver.runner.sample(None)
    assert ticket.wait().fault is None
    monkeypatch.setattr(driver.runner.model, "forward", lambda ids, embeds: 1 / 0)
    driver.runner.forward(StepPlan(**{name: getattr(plan, name) for name in plan.__struct_fields__} | {"repeat": 3}))
    assert [ticket.wait().fault for ticket in driver.runner.sample(None)] == ["ZeroDivisionError: division by zero"] * 3


def test_logits_come_in_pieces_of_rows(monkeypatch):
    def said():
        requests = requests_of(11, logprobs=2)
        driver = Driver(TinyModel())
        drive(driver, requests, np.random.default_rng(4))
        return [r.said for r in requests], [[(a.tolist(), b.tolist()) for a, b, _ in r.logprobs] for r in requests]

    whole = said()
    monkeypatch.setattr(runner_module, "LOGITS", 2 * VOCAB)
    pieces = said()
    assert pieces[0] == whole[0]
    for one, other in zip(whole[1], pieces[1], strict=True):
        assert [ids for ids, _ in one] == [ids for ids, _ in other]


@pytest.mark.parametrize("chunk", [2, 100])
def test_prompt_log_probabilities_are_those_of_the_next_tokens(chunk):
    prompt = [5, 6, 7, 8, 9, 10, 11]
    request = Request(prompt, 10, Sampling(seed=1, temperature=0.0, prompt_logprobs=3, logprobs=1))
    alone(request, chunk=chunk)
    starts = [start for start, _ in request.prompt_logprobs]
    assert starts == [1 + at for at in range(0, 6, chunk)]
    ids = np.concatenate([arrays.ids for _, arrays in request.prompt_logprobs])
    values = np.concatenate([arrays.values for _, arrays in request.prompt_logprobs])
    assert ids.shape == (6, 4)
    assert ids[:, 0].tolist() == prompt[1:]
    for i in range(1, 7):
        shorter = Request(prompt[:i], i + 1, Sampling(seed=1, temperature=0.0, logprobs=-1))
        alone(shorter)
        table = dict(zip(*(column[1:].tolist() for column in shorter.logprobs[0][:2]), strict=True))
        np.testing.assert_allclose(values[i - 1], [table[t] for t in ids[i - 1].tolist()], rtol=1e-4, atol=1e-4)


def test_history_of_a_resumed_row_serves_its_stages():
    """Penalties count what was said before a preemption."""
    first, second = requests_of(8, 4)[3], requests_of(8, 4)[3]
    first.limit = second.limit = len(first.prompt) + 12
    first.stops = second.stops = ()
    driver = Driver(TinyModel())
    driver.admit(second)
    driver.run([(second, len(second.prompt))])
    for _ in range(5):
        driver.run([(second, 1)])
    driver.preempt(second)
    driver.admit(second)
    assert driver.fresh[-1].tokens == pack_tokens(second.tokens)
    driver.run([(second, len(second.tokens))])
    while not second.done:
        driver.run([(second, 1)])
    assert second.said == alone(first)


def test_nothing_of_a_step_needs_gradients():
    request = requests_of(8, 1)[0]
    model = TinyModel()
    model.embed.requires_grad_(True)
    alone(request, model=model)
    assert torch.is_grad_enabled()
