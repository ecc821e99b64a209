"""Sampling kernels against plain numpy."""

import numpy as np
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from octavo.device.kernels import truncate
from octavo.device.kernels.draw import (
    draw,
    draw_among,
    draw_rows_torch,
    draw_torch,
    exponentials,
    keys,
    pick,
    pick_torch,
)
from octavo.device.kernels.logprobs import log_sum_exp, ranks, top_ids
from octavo.device.kernels.mask import add_bias, apply_bits, bad_ends, forbid, forbid_rows_torch, forbid_torch
from octavo.device.kernels.penalties import count, penalise
from octavo.device.kernels.truncate import min_p, top_k_p

seeds = st.integers(0, 2**31)
NOT = float("-inf")


def logits_of(seed, rows=4, vocab=50, ties=False):
    values = np.random.default_rng(seed).normal(size=(rows, vocab)).astype(np.float32) * 3
    return np.round(values) if ties else values


def numpy_exponentials(seed, position, ids):
    """The definition, on Python integers and numpy."""
    whole = 2**64 - 1
    x = (seed + (position + 1) * 0x9E3779B97F4A7C15) & whole
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & whole
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & whole
    x ^= x >> 31
    first, second = x & (2**32 - 1), x >> 32
    h = ids.astype(np.uint32) * np.uint32(0x9E3779B1) ^ np.uint32(first)
    h = (h ^ h >> np.uint32(16)) * np.uint32(0x21F0AAAD)
    h = (h ^ h >> np.uint32(15) ^ np.uint32(second)) * np.uint32(0x735A2D97)
    h = (h ^ h >> np.uint32(15)) & np.uint32(2**31 - 1)
    uniform = (h.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-31 * (1 - 2.0**-24))
    return -np.log1p(-uniform.astype(np.float64))


@example(-1271, 0)
@example(0, 454)
@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**20))
def test_noise_is_the_hash_of_seed_position_and_id(seed, position):
    ids = np.array([0, 1, 7, 255, 818, 49151, 151935, 2**31 - 1])
    (key,) = keys(torch.tensor([seed]), torch.tensor([position]))
    got = exponentials(key, torch.from_numpy(ids.astype(np.int32))).numpy()
    want = numpy_exponentials(seed, position, ids)
    np.testing.assert_allclose(
        got[want < 1], want[want < 1], rtol=1e-5
    )  # the winners' end; at the other float32 is coarse
    np.testing.assert_allclose(np.exp(-got), np.exp(-want), atol=3e-7)
    assert (got > 0).all()


def test_noise_is_exponential_and_independent_over_ids_positions_and_seeds():
    def uniforms(seed_list, positions, ids):
        key = keys(torch.tensor(seed_list), torch.tensor(positions))
        return np.exp(-np.stack([exponentials(k, ids).numpy() for k in key]))

    ids = torch.arange(4096, dtype=torch.int32)
    for got in (uniforms([3] * 32, list(range(32)), ids), uniforms(list(range(32)), [9] * 32, ids)):
        counts = np.histogram(got, 64, (0, 1))[0]
        assert ((counts - got.size / 64) ** 2 / (got.size / 64)).sum() < 130  # chi2, 63 degrees: one in a million
        assert abs(np.corrcoef(got) - np.eye(32)).max() < 0.09
        shifted = np.corrcoef(got[:, :-1].ravel(), got[:, 1:].ravel())[0, 1]
        assert abs(shifted) < 0.015


def test_the_only_token_left_is_drawn_whatever_its_noise():
    """31 bits that round to 2^31 in float32."""
    (key,) = keys(torch.tensor([0]), torch.tensor([454]))
    only = torch.full((1, 1024), NOT)
    only[0, 818] = 0.0
    noise = exponentials(key, torch.tensor([818], dtype=torch.int32))
    assert 16 < float(noise) < 17
    heat = torch.ones(1)
    for ids, scores in (draw(only, key[None]), draw_rows_torch(only, key[None], heat)):
        assert ids.tolist() == [818]
        assert scores.isfinite().all()
    assert draw_among(only[0, 818:819], torch.tensor([818]), key)[1].isfinite()


def test_draws_follow_the_softmax():
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, NOT])
    count_of = 20000
    ids, scores = draw(logits.expand(count_of, 5), keys(torch.arange(count_of), torch.full((count_of,), 5)))
    expected = logits.softmax(0).numpy() * count_of
    got = np.bincount(ids.numpy(), minlength=5)
    assert got[4] == 0
    assert ((got - expected)[:4] ** 2 / expected[:4]).sum() < 25
    assert scores.isfinite().all()


@given(seeds)
def test_a_row_draws_the_same_alone_and_among_few(seed):
    logits = torch.from_numpy(logits_of(seed, vocab=33))
    logits[logits < 1] = NOT
    logits[:, 0] = 0.0
    key = keys(torch.arange(4) + seed, torch.tensor([1, 2, 3, 4]))
    ids, scores = draw(logits, key)
    for row in range(4):
        alone = draw(logits[row : row + 1], key[row : row + 1])
        assert (alone[0][0], alone[1][0]) == (ids[row], scores[row])
        left = (logits[row] > NOT).nonzero().squeeze(1)
        assert draw_among(logits[row, left], left, key[row])[0] == ids[row]


def test_unsound_rows_show_in_the_score():
    logits = torch.zeros(3, 8)
    logits[1, 5] = float("nan")
    logits[2] = NOT
    for _, scores in (pick(logits), draw(logits, keys(torch.arange(3), torch.arange(3)))):
        assert scores.isfinite().tolist() == [True, False, False]
    assert pick(torch.tensor([[1.0, 4.0, 2.0]]))[0].tolist() == [1]


@given(seeds, st.sampled_from((1, 31, 64, 512, 1024, 1536)))
def test_pick_is_the_first_of_the_largest(seed, vocab):
    logits = torch.from_numpy(logits_of(seed, vocab=vocab, ties=True))
    ids, best = pick(logits)
    assert ids.tolist() == logits.numpy().argmax(-1).tolist()
    assert torch.equal(best, logits.amax(-1))


@given(seeds, st.booleans())
def test_truncation_keeps_what_its_definition_keeps(seed, ties):
    rng = np.random.default_rng(seed)
    logits = logits_of(seed, ties=ties)
    k, p = rng.integers(0, 12, 4), rng.choice([1.0, 0.9, 0.5, 1e-6], 4).astype(np.float32)
    got = torch.from_numpy(logits.copy())
    top_k_p(got, torch.from_numpy(k), torch.from_numpy(p))
    for row in range(4):
        kept = logits[row] >= (np.sort(logits[row])[-k[row]] if k[row] else NOT)
        if p[row] < 1:
            chances = np.where(kept, np.exp(logits[row].astype(np.float64)), 0)
            chances /= chances.sum()
            order = np.argsort(-logits[row], kind="stable")
            before = np.cumsum(chances[order]) - chances[order]
            assume(abs(before - p[row]).min() > 1e-6)
            floor = logits[row][order][max(1, (before < p[row]).sum()) - 1]
            kept &= logits[row] >= floor
        expected = np.where(kept, logits[row], NOT)
        np.testing.assert_array_equal(got[row].numpy(), expected)


def test_a_flat_nucleus_is_found_beyond_the_short_list(monkeypatch):
    logits = torch.from_numpy(logits_of(1, rows=3, vocab=400)) / 10
    args = torch.tensor([0, 0, 30]), torch.tensor([0.9, 0.2, 0.9])
    whole = logits.clone()
    top_k_p(whole, *args)
    monkeypatch.setattr(truncate, "SHORT", 16)
    short = logits.clone()
    top_k_p(short, *args)
    assert torch.equal(short, whole)
    assert ((whole > NOT).sum(1) > torch.tensor([16, 16, 16])).tolist() == [True, True, True]


@given(seeds, st.floats(0, 1))
def test_min_p_compares_with_the_best(seed, least):
    logits = logits_of(seed)
    got = torch.from_numpy(logits.copy())
    min_p(got, torch.full((4,), least))
    chances = np.exp(logits - logits.max(-1, keepdims=True))
    sure = abs(chances - least) > 1e-5
    np.testing.assert_array_equal((got > NOT).numpy()[sure], (chances >= least)[sure])
    assert (got > NOT).any(-1).all()


@given(seeds)
def test_penalties_are_the_formula(seed):
    rng = np.random.default_rng(seed)
    logits = logits_of(seed, vocab=20)
    prompted, counts = rng.random((9, 20)) < 0.3, rng.integers(0, 3, (9, 20)).astype(np.int32)
    rows = rng.permutation(9)[:4]
    rep, freq, pres = (rng.uniform(low, 2, 4).astype(np.float32) for low in (0.5, -2, -2))
    got = torch.from_numpy(logits.copy())
    penalise(got, *(torch.from_numpy(a) for a in (rows, prompted, counts, rep, freq, pres)))
    for i, row in enumerate(rows):
        for token in range(20):
            value = logits[i, token]
            if prompted[row, token] or counts[row, token]:
                value = value / rep[i] if value > 0 else value * rep[i]
            value -= freq[i] * counts[row, token] + pres[i] * (counts[row, token] > 0)
            assert abs(value - got[i, token]) < 1e-4
    tally = torch.from_numpy(counts.copy())
    count(tally, torch.tensor([2, 5]), torch.tensor([3, 3]), torch.tensor([True, False]))
    assert tally[2, 3] == counts[2, 3] + 1
    assert tally.sum() == counts.sum() + 1


@given(seeds, st.integers(1, 70))
def test_masks_bias_and_forbidden_ids(seed, vocab):
    rng = np.random.default_rng(seed)
    logits = logits_of(seed, vocab=vocab)
    may = rng.random((4, vocab)) < 0.5
    padded = np.zeros((4, -(-vocab // 32) * 32), np.uint8)
    padded[:, :vocab] = may
    got = torch.from_numpy(logits.copy())
    apply_bits(got, torch.from_numpy(np.packbits(padded, 1, bitorder="little").view("<i4")))
    np.testing.assert_array_equal(got.numpy(), np.where(may, logits, NOT))

    ids = np.stack([rng.permutation(np.arange(-1, vocab))[:2] if vocab > 1 else [0, -1] for _ in range(4)]).astype(
        np.int32
    )
    values = rng.normal(size=(4, 2)).astype(np.float32)
    biased, without = logits.copy(), logits.copy()
    for i in range(4):
        for token, value in zip(ids[i], values[i], strict=True):
            if token >= 0:
                biased[i, token] += value
                without[i, token] = NOT
    got = torch.from_numpy(logits.copy())
    add_bias(got, torch.from_numpy(ids), torch.from_numpy(values))
    np.testing.assert_allclose(got.numpy(), biased, rtol=1e-6)
    got = torch.from_numpy(logits.copy())
    forbid(got, torch.from_numpy(ids))
    np.testing.assert_array_equal(got.numpy(), without)


def test_bad_words_bite_at_their_last_token_only():
    words = torch.tensor([[[-1, -1, 4], [-1, 10, 12], [5, 10, 13], [7, 10, 14], [-1, -1, -1]]] * 2, dtype=torch.int32)
    recent = torch.tensor([[5, 10], [-2, 10]], dtype=torch.int32)
    assert bad_ends(words, recent).tolist() == [[4, 12, 13, -1, -1], [4, 12, -1, -1, -1]]


@given(seeds)
def test_normalisation_and_ranks(seed):
    logits = logits_of(seed, vocab=37, ties=True)
    given_to = torch.from_numpy(logits)
    total = log_sum_exp(given_to)
    np.testing.assert_allclose(total.numpy(), np.log(np.exp(logits.astype(np.float64)).sum(-1)), rtol=1e-5, atol=1e-5)
    for row in range(4):
        assert torch.equal(log_sum_exp(given_to[row : row + 1])[0], total[row])
    chosen = given_to[:, 3]
    assert ranks(given_to, chosen).tolist() == [(logits[i] >= logits[i, 3]).sum() for i in range(4)]
    ids, values = top_ids(given_to, 5)
    np.testing.assert_array_equal(values.numpy(), -np.sort(-logits, -1)[:, :5])
    np.testing.assert_array_equal(np.take_along_axis(logits, ids.numpy().astype(int), 1), values.numpy())


@given(seeds, st.integers(1, 90), st.sampled_from((64, 128, 192, 77, 513)), st.booleans(), st.integers(3, 520))
def test_the_largest_of_a_row(seed, k, vocab, ties, gone):
    row = logits_of(seed, rows=1, vocab=vocab, ties=ties)[0]
    row[np.random.default_rng(seed).permutation(vocab)[:gone]] = NOT
    k = min(k, vocab)
    values, ids = truncate.largest(torch.from_numpy(row), k)
    kept = (row >= np.sort(row)[-k]) & (row > NOT)
    assert sorted(ids.tolist()) == np.flatnonzero(kept).tolist()
    assert values.tolist() == sorted(row[kept].tolist(), reverse=True)
    assert truncate.left(torch.from_numpy(row)).tolist() == np.flatnonzero(row > NOT).tolist()
    row[seed % vocab] = np.nan
    assert len(truncate.largest(torch.from_numpy(row), k)[0]) == 0
    assert len(truncate.left(torch.from_numpy(row))) == 0


def test_few_tokens_left_are_all_that_is_sorted(monkeypatch):
    """What min-p, a mask or allowed ids leave is less than top-k asks for, or than top-p looks at first."""
    sorted_widths = []
    sort = torch.Tensor.sort

    def watched(tensor, *args, **options):
        sorted_widths.append(tensor.numel())
        return sort(tensor, *args, **options)

    monkeypatch.setattr(torch.Tensor, "sort", watched)
    row = torch.full((1, 100_000), NOT)
    row[0, [7, 99_999, 500]] = torch.tensor([1.0, 3.0, 2.0])
    for k, p in ((50, 1.0), (50, 0.99), (0, 0.99)):
        got = row.clone()
        top_k_p(got, torch.tensor([k]), torch.tensor([p]))
        assert (got > NOT).nonzero()[:, 1].tolist() == [7, 500, 99_999]
    assert sorted_widths == [3, 3, 3]


@settings(max_examples=40)
@given(st.integers(0, 2**31), st.booleans())
def test_all_rows_at_once_are_the_rows_one_by_one(seed, ties):
    rng = np.random.default_rng(seed)
    rows, vocab = int(rng.integers(1, 5)), int(rng.choice((7, 64, 300)))
    logits = torch.from_numpy(rng.normal(size=(rows, vocab)).astype(np.float32) * 3)
    if ties:
        logits = logits.round()
    k = torch.from_numpy(rng.integers(0, 9, rows).astype(np.int32)).clamp(max=vocab)
    p = torch.from_numpy(rng.choice(np.float32((0.05, 0.5, 0.9, 1.0)), rows))
    one, other = logits.clone(), logits.clone()
    truncate.top_k_p_torch(one, k, p)
    truncate.top_k_p_rows_torch(other, k, p)
    assert torch.equal(one, other)
    ids = torch.from_numpy(rng.integers(-1, vocab, (rows, 3)).astype(np.int32))
    one, other = logits.clone(), logits.clone()
    forbid_torch(one, ids)
    forbid_rows_torch(other, ids)
    assert torch.equal(one, other)
    heat = torch.from_numpy(rng.choice(np.float32((0.0, 0.6, 1.0, 1.7)), rows))
    key = keys(torch.arange(rows) + seed, torch.arange(rows))
    at, scores = draw_rows_torch(logits, key, heat)
    for i in range(rows):
        if heat[i] == 0:
            want = pick_torch(logits[i : i + 1])
        else:
            want = draw_torch(logits[i : i + 1] / heat[i], key[i : i + 1])
        assert (int(at[i]), float(scores[i])) == (int(want[0]), float(want[1]))
    scaled = draw_rows_torch(logits / heat.where(heat > 0, 1)[:, None], key, heat, scaled=True)
    assert torch.equal(scaled[0], at)
