"""Sampling and the step's frame under Triton's interpreter, against their twins."""

import numpy as np
import pytest
import torch

from octavo.device.kernels import draw, embed, step_in, step_out, truncate, words
from tests.unit.device.kernels.interpreter import HERE, interpreted

pytestmark = interpreted


@pytest.fixture(autouse=True)
def here():
    with HERE:
        yield


def given(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array).to(HERE)


def test_keys_and_draws():
    torch.manual_seed(1)
    seeds, at = torch.randint(-(2**62), 2**62, (5,)), torch.randint(0, 9999, (5,))
    key = draw.keys_torch(seeds, at)
    assert torch.equal(draw.keys_triton(seeds, at), key)
    logits = torch.randn(5, 5000) * 2
    heat = torch.tensor([0.0, 1.0, 0.7, 1.0, 1.0])
    logits[3, 7] = float("nan")
    logits[4] = float("-inf")
    logits[2, 4000] = float("-inf")
    for scaled in (False, True):
        ids, scores = draw.best_triton(logits, key, heat, scaled)
        want, their = draw.draw_rows_torch(logits, key, heat, scaled)
        assert torch.equal(ids[:3], want[:3])
        torch.testing.assert_close(scores[:3], their[:3], atol=1e-5, rtol=1e-5)
        assert scores[3].isnan()
        assert scores[4] == float("-inf")
        assert (ids >= 0).all()
        assert (ids < 5000).all()
    ids, scores = draw.best_triton(logits)
    want, their = draw.pick_torch(logits)
    assert torch.equal(ids[:3], want[:3])
    assert torch.equal(scores[:3], their[:3])
    # the noise itself: equal logits show it alone
    flat = torch.zeros(1, 40000)
    assert torch.equal(draw.best_triton(flat, key[:1], heat[1:2])[0], draw.draw_rows_torch(flat, key[:1], heat[1:2])[0])


def test_truncation_keeps_what_sorting_keeps(monkeypatch):
    monkeypatch.setattr(truncate, "FEW", 16)
    torch.manual_seed(2)
    logits = torch.randn(9, 3000) * torch.tensor([[0.1], [3.0], [3.0], [9.0], [0.01], [3.0], [1.0], [2.0], [4.0]])
    logits[2] = logits[2].round()
    logits[7, 100:] = float("-inf")
    k = torch.tensor([5, 0, 10, 3, 0, 0, 2000, 0, 7], dtype=torch.int32)
    p = torch.tensor([1.0, 0.8, 0.5, 0.99, 0.9, 1.0, 0.3, 0.9, 1e-6])
    mine, theirs = logits.clone(), logits.clone()
    truncate.top_k_p_triton(mine, k, p)
    truncate.top_k_p_torch(theirs, k, p)
    for row in range(len(k)):
        assert torch.equal(mine[row].isfinite(), theirs[row].isfinite()), row
    assert torch.equal(mine, theirs)
    least = torch.tensor([0.0, 0.1, 0.5, 1.0, 0.9, 0.0, 0.2, 0.3, 0.4])
    truncate.min_p_triton(mine, least)
    truncate.min_p_torch(theirs, least)
    assert torch.equal(mine, theirs)


@pytest.mark.parametrize("single", [True, False])
def test_a_step_begins(single):
    rng = np.random.default_rng(3)
    rows = given(rng.permutation(6)[:4].copy())
    takes, known = (
        (torch.ones(4), torch.zeros(4)) if single else (torch.tensor([1, 3, 1, 300]), torch.tensor([0, 3, 1, 299]))
    )
    takes, known, planned = takes.long(), known.long(), torch.tensor([3, 0, 9, 2])
    computed, last = (given(rng.integers(0, 50, 7)) for _ in range(2))
    chunk = torch.arange(1000, 1000 + int(known.sum()))
    args = rows, takes, known, planned, chunk, computed, last, int(takes.sum())
    mine, theirs = step_in.step_in_triton(*args), step_in.step_in_torch(*args)
    for name in ("ids", "positions", "index", "query_start", "seq_lens"):
        assert torch.equal(getattr(mine, name), getattr(theirs, name)), name
    table = given(rng.integers(0, 99, (7, 200)).astype(np.int32))
    alive = given(rng.random(7) < 0.7)
    places = mine.positions, rows[mine.index], table, 8, alive
    assert torch.equal(step_in.slots_triton(*places), step_in.slots_torch(*places))


def test_a_step_is_committed():
    rng = np.random.default_rng(4)
    rows = given(rng.permutation(9)[:7].copy())
    lens = given(rng.integers(3, 9, 7))
    sampled = torch.tensor([0, 2, 3, 5, 6])
    tokens = torch.tensor([4, 5, 6, 7, 8])
    state = {
        "computed": given(rng.integers(0, 9, 10)),
        "last": given(rng.integers(0, 9, 10)),
        "alive": given(rng.random(10) < 0.8),
        "limit": given(rng.integers(5, 12, 10).astype(np.int32)),
        "min_len": given(rng.integers(0, 9, 10).astype(np.int32)),
        "stops": given(rng.integers(-1, 9, (10, 3)).astype(np.int32)),
    }
    other = {name: value.clone() for name, value in state.items()}
    good = torch.tensor([True, True, False, True, True])
    mine = step_out.commit_triton(rows, lens, sampled, tokens, good, **state)
    assert torch.equal(mine, step_out.commit_torch(rows, lens, sampled, tokens, good, **other))
    for name in state:
        assert torch.equal(state[name], other[name]), name


@pytest.mark.parametrize("count", [7, 300])
@pytest.mark.parametrize("every", [True, False])
def test_a_step_is_finished_as_commit_and_words_do(every, count):
    """The last row stands for padding: it may come again and again, and is dead."""
    rng = np.random.default_rng(5)
    rows = given(rng.permutation(count + 2)[:count].copy())
    rows[rows >= count] = count + 2
    lens = given(rng.integers(3, 9, count))
    sampled = None if every else given(np.flatnonzero(rng.random(count) < 0.7))
    which = torch.arange(count) if sampled is None else sampled
    tokens = given(rng.integers(0, 200_000, len(which)))
    clock = torch.tensor([words.TAGS - 2], device=HERE)
    twin = clock.clone()
    ring = torch.zeros(4, count + 5, dtype=torch.int64, device="cpu", pin_memory=HERE.type == "cuda")
    for tag in (words.TAGS - 2, words.TAGS - 1, 0, 1):
        scores = torch.randn(len(which))
        scores[1], scores[-1], scores[2] = float("nan"), float("-inf"), float("inf")
        state = {
            "computed": given(rng.integers(0, 9, count + 3)),
            "last": given(rng.integers(0, 9, count + 3)),
            "alive": given(rng.random(count + 3) < 0.8),
            "limit": given(rng.integers(5, 12, count + 3).astype(np.int32)),
            "min_len": given(rng.integers(0, 9, count + 3).astype(np.int32)),
            "stops": given(rng.integers(-1, 9, (count + 3, 3)).astype(np.int32)),
        }
        state["alive"][-1] = False
        other = {name: value.clone() for name, value in state.items()}
        living = state["alive"][rows[which]].clone()
        step_out.finish(rows, lens, sampled, tokens, scores, **state, clock=clock, ring=ring)
        counts = step_out.commit_torch(rows, lens, which, tokens, scores.abs() < float("inf"), **other)
        want = words.words(tokens, counts, living, scores, twin)
        if HERE.type == "cuda":
            torch.cuda.synchronize()
        assert torch.equal(ring[tag & 3, : len(which) + 1], want.cpu())
        assert (ring[tag & 3, 1 : len(which)] >> 32 == tag).all()
        for name in state:
            assert torch.equal(state[name], other[name]), name
    assert torch.equal(clock, twin)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("scale", [1.0, 11.3125])
def test_rows_of_an_embedding(dtype, scale):
    weight = torch.randn(50, 72).to(dtype)
    ids = torch.tensor([3, 49, 0, 3, 17])
    mine = embed.embed_triton(ids, weight, scale)
    theirs = embed.embed_torch(ids, weight, scale)
    assert torch.equal(mine, theirs)
    torch.testing.assert_close(mine.squares.squeeze(1), theirs.float().square().sum(1))


def test_a_draw_by_seeds_is_a_draw_by_keys():
    rows, lens = torch.tensor([4, 0, 2]), torch.tensor([7, 1 << 33, 0])
    seeds = torch.tensor([5, -3, (1 << 62) + 12345, 9, -(1 << 63)])
    heats = torch.tensor([0.7, 1.0, 0.0, 1.0, 1.3])
    logits = torch.randn(3, 5000)
    mine = draw.best_triton(logits, seeds, heats, rows=rows, lens=lens)
    theirs = draw.best_triton(logits, draw.keys_torch(seeds[rows], lens), heats[rows])
    assert all(torch.equal(*both) for both in zip(mine, theirs, strict=True))
