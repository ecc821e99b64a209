"""The sampler as a whole: order of stages, independence of rows, log-probabilities, memory."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from octavo.device.batch.state import RequestState
from octavo.device.sampling.sampler import Sampler
from octavo.device.sampling.stage import Drawing
from octavo.wire.arrays import ints, pack_tokens
from octavo.wire.plan import NewRow
from octavo.wire.request import Sampling

VOCAB, ROWS, LENGTH = 83, 8, 40
CPU = torch.device("cpu")

samplings = st.builds(
    Sampling,
    seed=st.integers(0, 2**63 - 1),
    temperature=st.sampled_from((0.0, 0.7, 1.0, 2.0)),
    top_k=st.sampled_from((0, 1, 5, 200)),
    top_p=st.sampled_from((1.0, 0.9, 0.3)),
    min_p=st.sampled_from((0.0, 0.05)),
    presence_penalty=st.sampled_from((0.0, 1.0)),
    frequency_penalty=st.sampled_from((0.0, -0.5)),
    repetition_penalty=st.sampled_from((1.0, 1.3)),
    logprobs=st.sampled_from((None, 0, 3, -1)),
    allowed=st.sampled_from((b"", pack_tokens(range(0, 60, 2)))),
    bias_ids=st.just(pack_tokens([3, 9])),
    bias_values=st.just(np.array([5.0, -5.0], "<f4").tobytes()),
    bad_words=st.sampled_from(((), ((4,), (2, 8)))),
)


def new_row(row, sampling, tokens=(1, 2), prompt=1, **options):
    return NewRow(
        row,
        0,
        prompt,
        len(tokens),
        LENGTH,
        options.get("min_length", 0),
        options.get("stops", ()),
        sampling,
        pack_tokens(tokens) if sampling.needs_history else b"",
    )


def sampler_of(news, mode="raw_logprobs"):
    state = RequestState(ROWS, LENGTH, CPU)
    sampler = Sampler(state, VOCAB, CPU, mode)
    for new in news:
        state.add(new)
        sampler.add(new)
    state.flush()
    return sampler


def drawing_of(rows, lens):
    return Drawing(ints(rows), ints(lens), torch.tensor(rows), torch.tensor(lens))


def sample(news, logits, mode="raw_logprobs", **masks):
    rows, lens = [new.row for new in news], [new.length for new in news]
    return sampler_of(news, mode).sample(logits.clone(), drawing_of(rows, lens), **masks)


@given(st.lists(samplings, min_size=2, max_size=6), st.integers(0, 2**31))
def test_a_mixed_batch_is_each_row_alone(asked, seed):
    logits = torch.from_numpy(np.random.default_rng(seed).normal(size=(len(asked), VOCAB)).astype(np.float32) * 4)
    history = [tuple(np.random.default_rng(seed + i).integers(0, VOCAB, 2 + i)) for i in range(len(asked))]
    news = [new_row(i, one, history[i], stops=(5, 6), min_length=i + 4) for i, one in enumerate(asked)]
    bits = np.full((1, 3), -1 ^ 0b1010, np.int32)
    together = sample(news, logits, masked=np.array([1]), bits=bits)
    for i, new in enumerate(news):
        alone = sample([new], logits[i : i + 1], **({"masked": np.array([0]), "bits": bits} if i == 1 else {}))
        assert alone.tokens[0] == together.tokens[i]
        assert alone.logprobs is None or i in together.asked
        if alone.logprobs is not None:
            at = together.asked.tolist().index(i)
            wide = alone.logprobs.ids.shape[1]
            np.testing.assert_array_equal(together.logprobs.ids[at, :wide], alone.logprobs.ids[0])
            np.testing.assert_array_equal(together.logprobs.values[at, :wide], alone.logprobs.values[0])
            assert (together.logprobs.ids[at, wide:] == -1).all()
            assert together.logprobs.ranks[at] == alone.logprobs.ranks[0]


def test_the_same_seed_and_position_draw_the_same_token_and_others_do_not():
    logits = torch.zeros(1, VOCAB)

    def token(seed, length):
        return int(sample([new_row(0, Sampling(seed=seed), range(length))], logits).tokens[0])

    assert token(7, 5) == token(7, 5)
    assert len({token(7, n) for n in range(1, 30)} | {token(n, 5) for n in range(30)}) > 20
    assert token(2**63 - 1, 3) == token(-1 + 2**63, 3)


def test_stages_come_in_their_order():
    logits = torch.zeros(1, VOCAB)
    logits[0, 10], logits[0, 20], logits[0, 30] = 5.0, 4.0, 3.0

    def best(**asked):
        tokens = asked.pop("tokens", (1, 2))
        options = {name: asked.pop(name) for name in ("stops", "min_length", "prompt") if name in asked}
        masks = asked.pop("masks", {})
        return int(
            sample([new_row(0, Sampling(seed=1, temperature=0.0, **asked), tokens, **options)], logits, **masks).tokens[
                0
            ]
        )

    assert best() == 10
    assert best(allowed=pack_tokens([20, 30])) == 20
    # a bias cannot bring back what is not allowed, and is there before the penalties
    bias = {"bias_ids": pack_tokens([50, 30]), "bias_values": np.array([100, 3], "<f4").tobytes()}
    assert best(allowed=pack_tokens([20, 30]), **bias) == 30
    assert (
        best(allowed=pack_tokens([20, 30]), tokens=(1, 30), presence_penalty=2.0, frequency_penalty=1.0, **bias) == 20
    )
    assert best(tokens=(10,), repetition_penalty=2.0) == 20
    assert best(stops=(10, 20), min_length=3) == 30
    assert best(stops=(10, 20), min_length=2) == 10
    assert best(bad_words=((10,), (2, 20))) == 30
    assert best(bad_words=((10,), (3, 20))) == 20
    # what the prompt ends with begins no bad word, as in vLLM
    assert best(bad_words=((10,), (2, 20)), prompt=2) == 20
    assert best(bad_words=((10,), (1, 2, 20)), prompt=1) == 20
    assert best(bad_words=((10,), (1, 2, 20)), prompt=0) == 30
    bits = np.zeros((1, 3), np.int32)
    bits[0, 30 // 32] |= 1 << 30
    assert best(masks={"masked": np.array([0]), "bits": bits}) == 30


def test_penalties_count_what_is_said_and_forget_the_last_owner_of_a_row():
    logits = torch.zeros(1, VOCAB)
    logits[0, 10], logits[0, 20] = 2.0, 1.5
    asked = Sampling(seed=1, temperature=0.0, frequency_penalty=0.3)
    sampler = sampler_of([new_row(0, asked)])
    said = []
    for i in range(4):
        drawing = drawing_of([0], [2 + i])
        drawn = sampler.sample(logits.clone(), drawing)
        sampler.commit(drawing, drawn.tokens, drawn.good)
        said.append(int(drawn.tokens[0]))
    assert said == [10, 10, 20, 10]
    sampler.add(new_row(0, asked, (1, 10, 10), prompt=1))
    assert int(sampler.sample(logits.clone(), drawing_of([0], [3])).tokens[0]) == 20
    sampler.add(new_row(0, Sampling(seed=1, temperature=0.0)))
    assert int(sampler.sample(logits.clone(), drawing_of([0], [3])).tokens[0]) == 10


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"])
def test_log_probabilities_of_each_mode(mode):
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(3)) * 3
    got = sample([new_row(0, Sampling(seed=4, temperature=0.5, top_k=4, logprobs=6))], logits, mode)
    expected = logits[0].clone()
    if mode.startswith("processed"):
        expected = expected / 0.5
        expected[expected < expected.sort().values[-4]] = float("-inf")
    rank = int((expected >= expected[got.tokens[0]]).sum())
    if mode.endswith("logprobs"):
        expected = expected.log_softmax(-1)
    values, ids = expected.topk(6)
    count = 4 if mode.startswith("processed") else 6
    assert got.logprobs.ids[0, 0] == got.tokens[0]
    assert got.logprobs.ids[0, 1 : 1 + count].tolist() == ids[:count].tolist()
    np.testing.assert_allclose(got.logprobs.values[0, 1:], values.numpy(), rtol=1e-5)
    np.testing.assert_allclose(got.logprobs.values[0, 0], expected[got.tokens[0]], rtol=1e-5)
    assert got.logprobs.ranks[0] == rank


def test_named_ids_take_the_columns():
    logits = torch.randn(2, VOCAB)
    named = Sampling(seed=4, temperature=0.0, logprob_ids=pack_tokens([8, 80]))
    got = sample([new_row(0, named), new_row(1, Sampling(seed=4, temperature=0.0, logprobs=1))], logits)
    assert got.logprobs.ids[0].tolist() == [int(got.tokens[0]), 8, 80]
    np.testing.assert_allclose(got.logprobs.values[0], logits[0].log_softmax(-1)[got.logprobs.ids[0]], rtol=1e-5)
    assert got.logprobs.ids[1].tolist() == [int(got.tokens[1])] * 2 + [-1]


@pytest.mark.parametrize(
    "asked", [{}, {"temperature": 0.0}, {"top_k": 3, "top_p": 0.9}, {"top_p": 0.5}, {"min_p": 0.1}]
)
def test_a_bad_row_is_named_and_its_neighbours_are_as_ever(asked):
    logits = torch.randn(4, VOCAB)
    news = [new_row(i, Sampling(seed=i, **asked)) for i in range(4)]
    clean = sample(news, logits)
    spoiled = logits.clone()
    spoiled[1, 7] = float("nan")
    got = sample(news, spoiled, masked=np.array([2]), bits=np.zeros((1, 3), np.int32))
    assert got.faults == {1: "the model gave logits that are not numbers", 2: "no token is allowed here"}
    assert got.good.tolist() == [True, False, False, True]
    assert got.tokens[[0, 3]].tolist() == clean.tokens[[0, 3]].tolist()


PEAK = """
    import resource, sys
    import numpy as np, torch
    from octavo.device.sampling.logprobs import report, report_prompt
    torch.set_num_threads(1)
    vocab, count, kind = 60_000, 1_500, sys.argv[1]
    head = torch.randn(8, vocab)
    def run(n):
        hidden, targets = torch.randn(n, 8), torch.randint(0, vocab, (n,))
        if kind == "prompt":
            return report_prompt(hidden, targets, lambda h: h @ head, vocab, 5).values.nbytes
        return report(hidden @ head, targets, [-1] * n).values.nbytes
    run(2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    told = run(count if kind == "prompt" else 100)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, told // 1024)
"""


@pytest.mark.parametrize("kind", ["prompt", "all"])
def test_large_requests_for_log_probabilities_take_little_memory(kind):
    """A prompt of 1,500 positions has 360 MB of logits over 60,000 tokens; 100 rows that want every token have 24 MB of
    logits and a result of 48 MB."""
    with_one = [sys.executable, "-c", textwrap.dedent(PEAK), kind]
    out = subprocess.run(with_one, check=True, capture_output=True, text=True, env={"OMP_NUM_THREADS": "1"}).stdout
    peak_kib, values_kib = map(int, out.split())
    assert peak_kib < (48 << 10 if kind == "prompt" else 24_000 + 2 * values_kib + (64 << 10))
