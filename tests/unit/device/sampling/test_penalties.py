"""What rows have seen, as lists on a CPU and as counts elsewhere: the same penalties, bit for bit."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from octavo.device.batch.state import RequestState
from octavo.device.sampling.penalties import Counts, Lists
from octavo.device.sampling.stage import Drawing, Rows
from octavo.wire.arrays import ints

VOCAB, ROWS = 40, 5
CPU = torch.device("cpu")
tokens = st.lists(st.integers(0, VOCAB - 1), max_size=60)
requests = st.tuples(st.integers(0, ROWS - 1), tokens, tokens)
factors = st.sampled_from((0.5, 1.0, 1.3, -0.7, 2.0))


@given(
    st.lists(requests, min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=90),
    st.lists(st.tuples(st.sampled_from((0.5, 1.0, 1.3)), factors, factors), min_size=ROWS, max_size=ROWS),
    st.integers(0, 2**31),
)
def test_lists_are_the_counts_and_both_are_the_formula(entering, said, asked, seed):
    given_rows = Rows(RequestState(ROWS, 8, CPU), VOCAB, CPU)
    lists, counts = Lists(given_rows), Counts(given_rows)
    prompts, answers = {}, {}
    for row, prompt, answer in entering:
        for seen in (lists, counts):
            seen.begin(row, np.array(prompt, np.int32), np.array(answer, np.int32))
        prompts[row], answers[row] = prompt, list(answer)
    rows = sorted(prompts, reverse=True)
    drawing = Drawing(ints(rows), ints(rows), torch.tensor(rows), torch.tensor(rows))
    for token, good in said:
        given = torch.full((len(rows),), token), torch.full((len(rows),), good)
        for seen in (lists, counts):
            seen.count(drawing, *given)
        for row in rows:
            answers[row] += [token] * good
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(size=(len(rows), VOCAB)).astype(np.float32))
    columns = [torch.tensor([asked[row][i] for row in rows]) for i in range(3)]
    one, other = logits.clone(), logits.clone()
    lists.penalise(one, drawing, columns)
    counts.penalise(other, drawing, columns)
    assert torch.equal(one, other)
    for i, row in enumerate(rows):
        rep, freq, pres = asked[row]
        for token in range(VOCAB):
            value, times = float(logits[i, token]), answers[row].count(token)
            if times or token in prompts[row]:
                value = value / rep if value > 0 else value * rep
            assert abs(value - freq * times - pres * (times > 0) - float(one[i, token])) < 1e-4
