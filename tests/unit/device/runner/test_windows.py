"""Drafts on the device: however good they are, a request says what it says without, and nothing of the wrong ones is
left."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from device.double import VOCAB, Asynchronous, Driver, PagedAttention, Request, TinyModel, alone
from octavo.device.kernels.step_out import commit, commit_windows
from octavo.device.runner import runner as runner_module
from octavo.device.sampling import penalties
from octavo.wire.arrays import ints
from octavo.wire.plan import GrammarMasks
from octavo.wire.request import Sampling

from .test_runner import requests_of


def guesses(request: Request, said: list[int], rng, wrong: float) -> list[int]:
    """Drafts of what the request says next, some of them wrong, up to the last token but one."""
    at = len(request.said)
    most = min(int(rng.integers(0, 6)), request.limit - len(request.tokens) - 1)
    true = said[at : at + most]
    true += rng.integers(0, VOCAB, max(most - len(true), 0)).tolist()
    return [int(rng.integers(VOCAB)) if rng.random() < wrong else token for token in true]


def drive(driver, requests, expected, rng, wrong):
    """Random steps with drafts, pieces of prompts and plain decodes in them, and preemptions between."""
    waiting, live = list(requests), []
    while waiting or live:
        while waiting and driver.free_rows and (rng.random() < 0.5 or not live):
            live.append(waiting.pop(0))
            driver.admit(live[-1])
        if rng.random() < 0.1:
            victim = live.pop(int(rng.integers(len(live))))
            driver.preempt(victim)
            waiting.insert(0, victim)
        takes, drafts = [], {}
        for request in live:
            left = request.known - request.planned
            if rng.random() < 0.2:
                continue
            takes.append((request, int(rng.integers(1, left + 1)) if left > 0 else 1))
            if left <= 0 and (some := guesses(request, expected[requests.index(request)], rng, wrong)):
                drafts[request] = some
        if takes:
            driver.run(takes, drafts=drafts)
        for request in [r for r in live if r.done]:
            driver.release(request)
        live = [r for r in live if not r.done]


@settings(max_examples=3)
@given(st.integers(0, 2**31), st.sampled_from((None, 5)), st.sampled_from((0.0, 0.3, 1.0)), st.booleans())
def test_an_asynchronous_device_verifies_them_between_its_graphs(seed, window, wrong, eager):
    model = TinyModel(window=window)
    expected = [alone(r, model=model) for r in requests_of(seed)]
    requests = requests_of(seed)
    more = {"backend": PagedAttention(), "platform": Asynchronous(), "lead": 2, "eager": eager}
    driver = Driver(model, rows=4, page=4, seed=seed, **more)
    drive(driver, requests, expected, np.random.default_rng(seed), wrong)
    assert [r.said for r in requests] == expected


@settings(max_examples=6)
@given(
    st.integers(0, 2**31),
    st.sampled_from((1, 4, 16)),
    st.sampled_from((None, 5)),
    st.sampled_from((0.0, 0.3, 1.0)),
    st.booleans(),
)
def test_with_any_drafts_each_says_what_it_says_without(seed, page, window, wrong, apart):
    """``apart``: with the counts of a device whose memory is not the host's."""
    model = TinyModel(window=window)
    expected = [alone(r, model=model) for r in requests_of(seed)]
    requests = requests_of(seed)
    with pytest.MonkeyPatch.context() as patch:
        if apart:
            patch.setattr(penalties, "shared", lambda device: False)
        drive(Driver(model, rows=4, page=page, seed=seed), requests, expected, np.random.default_rng(seed), wrong)
    assert [r.said for r in requests] == expected


def test_drafts_count_where_a_row_has_its_counts_on_the_device(monkeypatch):
    """A token that is drafted twice in a window counts twice, said or not."""
    monkeypatch.setattr(penalties, "shared", lambda device: False)
    model = TinyModel()
    sampling = Sampling(seed=3, temperature=0.0, repetition_penalty=1.3, frequency_penalty=1.5, presence_penalty=0.5)
    requests = [Request([1, 2, 3, 2], 30, sampling), Request([5, 6], 30, sampling)]
    expected = [alone(request, model=model) for request in requests]
    for wrong in (0.0, 0.4):
        requests = [Request([1, 2, 3, 2], 30, sampling), Request([5, 6], 30, sampling)]
        drive(Driver(model, rows=2), requests, expected, np.random.default_rng(1), wrong)
        assert [request.said for request in requests] == expected


@pytest.mark.parametrize("logits", [1 << 24, 2 * VOCAB])
def test_every_token_of_a_window_has_its_log_probabilities(monkeypatch, logits):
    """Also where the logit rows of a window are sampled in pieces."""
    plain, drafted = requests_of(11, logprobs=2), requests_of(11, logprobs=2)
    expected = [alone(request) for request in plain]
    monkeypatch.setattr(runner_module, "LOGITS", logits)
    drive(Driver(TinyModel(), rows=4), drafted, expected, np.random.default_rng(4), 0.2)
    for one, other in zip(plain, drafted, strict=True):
        assert one.said == other.said
        assert len(one.logprobs) == len(other.logprobs) == len(one.said)
        for (ids, values, rank), (ids2, values2, rank2) in zip(one.logprobs, other.logprobs, strict=True):
            width = min(len(ids), len(ids2))
            assert ids[:width].tolist() == ids2[:width].tolist()
            np.testing.assert_allclose(values[:width], values2[:width], rtol=1e-4, atol=1e-5)
            assert rank == rank2


def admitted(driver, request):
    driver.admit(request)
    driver.run([(request, len(request.prompt))])
    return request


def test_each_place_of_a_window_has_its_own_mask():
    request = Request([1, 2, 3], 20, Sampling(seed=3, temperature=0.0))
    other = Request([4, 5, 6], 20, Sampling(seed=3, temperature=0.0))
    driver = Driver(TinyModel())
    admitted(driver, request)
    admitted(driver, other)
    bits = np.zeros((3, 4), np.int32)
    for line, token in enumerate((40, 41, 42)):
        bits[line, token >> 5] = 1 << (token & 31)
    driver.run([(other, 1), (request, 1)], masks=GrammarMasks(ints([1]), bits), drafts={request: [40, 41]})
    assert request.said[1:] == [40, 41, 42]
    assert other.said == alone(Request([4, 5, 6], 5, Sampling(seed=3, temperature=0.0)))
    # what no mask allows behind a wrong draft fails nobody
    bits[1:] = 0
    driver.run([(request, 1)], masks=GrammarMasks(ints([0]), bits), drafts={request: [7, 8]})
    assert request.said[4:] == [40]
    assert request.fault is None
    bits[0] = 0
    driver.run([(request, 1)], masks=GrammarMasks(ints([0]), bits), drafts={request: [7, 8]})
    assert request.fault == "no token is allowed here"


def test_a_draft_that_is_not_a_number_changes_nothing():
    model = TinyModel()
    asked = [([1, 2, 3], Sampling(seed=9, repetition_penalty=1.2)), ([4, 5, 6], Sampling(seed=3))]
    expected = [alone(Request(prompt, 30, sampling), model=model) for prompt, sampling in asked]
    driver = Driver(model)
    first, second = (admitted(driver, Request(prompt, 30, sampling)) for prompt, sampling in asked)
    model.spoiled = next(token for token in range(VOCAB) if token not in [*expected[0], *expected[1], *range(1, 7)])
    bits = np.full((4, 4), -1, np.int32)
    for guess in ([model.spoiled, 5], [expected[0][2], model.spoiled]):
        drafts = {first: guess, second: expected[1][len(second.said) :][:1]}
        driver.run([(second, 1), (first, 1)], masks=GrammarMasks(ints([1]), bits[:3]), drafts=drafts)
    for layer in driver.runner._bound.values():
        assert layer.cache.data.isfinite().all()
    while not (first.done and second.done):
        driver.run([(request, 1) for request in (first, second) if not request.done])
    assert [first.said, second.said] == expected
    assert first.fault is second.fault is None


def test_a_row_that_is_not_a_number_fails_alone_with_drafts_too():
    model = TinyModel()
    expected = alone(Request([4, 5, 6], 20, Sampling(seed=3)), model=model)
    driver = Driver(model)
    bad, good = (admitted(driver, Request(prompt, 20, Sampling(seed=3))) for prompt in ([1, 2, 3], [4, 5, 6]))
    model.spoiled = bad.said[0]
    assert model.spoiled not in expected
    driver.run([(bad, 1), (good, 1)], drafts={bad: [1, 2], good: expected[1:3]})
    assert bad.fault == "the model gave logits that are not numbers"
    while not good.done:
        driver.run([(good, 1)])
    assert good.said == expected


@given(st.integers(0, 2**31))
def test_commit_of_windows_is_commit_step_by_step(seed):
    rng = np.random.default_rng(seed)
    rows, width = 6, int(rng.integers(1, 5))
    order = rng.permutation(rows)[: rng.integers(1, rows + 1)]
    sampled = np.flatnonzero(rng.random(len(order)) < 0.7)
    counts = rng.integers(0, width, len(sampled))
    shape = len(sampled), width
    tokens, good = rng.integers(0, 3, shape), rng.random(shape) < 0.9
    drafts = np.where(np.arange(width) < counts[:, None], rng.integers(0, 3, shape), -1)
    start = rng.integers(1, 9, len(order))
    lens = start + 1
    lens[sampled] += counts
    before = {
        "computed": torch.from_numpy(np.append(rng.integers(0, 9, rows), 0)),
        "last": torch.from_numpy(rng.integers(0, 3, rows + 1)),
        "alive": torch.from_numpy(rng.random(rows + 1) < 0.8),
        "limit": torch.from_numpy(rng.integers(1, 14, rows + 1).astype(np.int32)),
        "min_len": torch.from_numpy(rng.integers(0, 14, rows + 1).astype(np.int32)),
        "stops": torch.from_numpy(rng.integers(-1, 3, (rows + 1, 1)).astype(np.int32)),
    }
    state = {name: column.clone() for name, column in before.items()}
    given_ = (torch.from_numpy(array) for array in (order, lens, sampled, tokens, good, drafts))
    said, failed = commit_windows(*given_, **state)
    step = {name: column.clone() for name, column in before.items()}
    expected, dead = [0] * len(sampled), [False] * len(sampled)
    idle = np.setdiff1d(np.arange(len(order)), sampled)
    commit(*(torch.from_numpy(a) for a in (order[idle], lens[idle], idle[:0], idle[:0], idle[:0] > 0)), **step)
    for nth, i in enumerate(sampled):
        row, at = order[i : i + 1], np.zeros(1, np.int64)
        for place in range(counts[nth] + 1):
            lived = bool(step["alive"][row[0]])
            draw, sound = tokens[nth, place : place + 1], good[nth, place : place + 1]
            one = commit(*(torch.from_numpy(a) for a in (row, start[i : i + 1] + 1 + place, at, draw, sound)), **step)
            expected[nth] += int(one[0])
            dead[nth] |= lived and not sound[0]
            if not lived or not step["alive"][row[0]] or draw[0] != drafts[nth, place]:
                break
    assert said.tolist() == expected
    assert failed.tolist() == dead
    for name in ("last", "alive"):
        assert state[name].tolist() == step[name].tolist(), name
    lives = step["alive"]
    assert state["computed"][lives].tolist() == step["computed"][lives].tolist()
