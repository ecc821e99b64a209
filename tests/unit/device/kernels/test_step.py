"""step_in and commit against plain Python."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from octavo.device.kernels.step_in import slots, step_in
from octavo.device.kernels.step_out import commit

ROWS = 6


@st.composite
def steps(draw):
    rows = draw(st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=ROWS, unique=True))
    known = [draw(st.integers(0, 5)) for _ in rows]
    drafts = draw(st.integers(0, 2))
    takes = [n or 1 + draw(st.integers(0, drafts)) for n in known]
    return rows, known, takes, drafts, draw(st.integers(0, 2**31))


@given(steps())
def test_inputs_are_what_each_row_would_make_alone(step):
    rows, known, takes, drafts, seed = step
    rng = np.random.default_rng(seed)
    computed = rng.integers(0, 50, ROWS + 1)
    planned = np.array([computed[row] + (9 if not n else 0) for row, n in zip(rows, known, strict=True)])
    for row, n, plan in zip(rows, known, planned, strict=True):
        if n:
            computed[row] = -1  # the plan is believed, not the device
            assert plan >= 0
    last = rng.integers(0, 99, ROWS + 1)
    ahead = rng.integers(0, 99, sum(n - 1 for n, given in zip(takes, known, strict=True) if not given))
    chunk = rng.integers(100, 199, sum(known))
    got = step_in(
        *(torch.tensor(c, dtype=torch.int64) for c in (rows, takes, known)),
        torch.from_numpy(planned),
        torch.from_numpy(chunk),
        torch.from_numpy(computed),
        torch.from_numpy(last),
        sum(takes),
        torch.from_numpy(ahead) if drafts else None,
    )
    ids, positions, index, lens, pieces, guesses = [], [], [], [], iter(chunk), iter(ahead)
    for i, row in enumerate(rows):
        start = planned[i] if known[i] else computed[row]
        mine = [next(pieces) for _ in range(known[i])]
        if not known[i]:
            mine += [last[row], *(next(guesses) for _ in range(takes[i] - 1))]
        ids += mine
        positions += list(range(start, start + takes[i]))
        index += [i] * takes[i]
        lens.append(start + takes[i])
    assert got.ids.tolist() == ids
    assert got.positions.tolist() == positions
    assert got.index.tolist() == index
    assert got.seq_lens.tolist() == lens
    assert got.query_start.tolist() == [0, *np.cumsum(takes)]


@given(st.integers(0, 5), st.integers(0, 2**31))
def test_slots_walk_the_table_and_dead_rows_write_to_the_null_slot(bits, seed):
    rng = np.random.default_rng(seed)
    page = 1 << bits
    table = rng.integers(1, 500, (4, 6)).astype(np.int32)
    alive = rng.random(4) < 0.7
    rows, positions = rng.integers(0, 4, 20), rng.integers(0, 6 * page, 20)
    got = slots(*(torch.from_numpy(a) for a in (positions, rows, table)), page, torch.from_numpy(alive))
    expected = [
        table[row, at // page] * page + at % page if alive[row] else 0 for row, at in zip(rows, positions, strict=True)
    ]
    assert got.tolist() == expected


@given(st.integers(0, 2**31))
def test_commit_is_the_state_machine_of_a_row(seed):
    rng = np.random.default_rng(seed)
    rows = rng.permutation(ROWS)[: rng.integers(1, ROWS + 1)]
    sampled = np.flatnonzero(rng.random(len(rows)) < 0.7)
    seq_lens = rng.integers(1, 12, len(rows))
    tokens, good = rng.integers(0, 5, len(sampled)), rng.random(len(sampled)) < 0.8
    before = {
        "computed": rng.integers(0, 9, ROWS + 1),
        "last": rng.integers(0, 5, ROWS + 1),
        "alive": rng.random(ROWS + 1) < 0.7,
        "limit": rng.integers(1, 14, ROWS + 1).astype(np.int32),
        "min_len": rng.integers(0, 14, ROWS + 1).astype(np.int32),
        "stops": rng.integers(-1, 5, (ROWS + 1, 2)).astype(np.int32),
    }
    state = {name: torch.from_numpy(column.copy()) for name, column in before.items()}
    counts = commit(*(torch.from_numpy(a) for a in (rows, seq_lens, sampled, tokens, good)), **state)
    after = {name: column.copy() for name, column in before.items()}
    said = []
    for i, row in enumerate(rows):
        if before["alive"][row]:
            after["computed"][row] = seq_lens[i]
    for n, i in enumerate(sampled):
        row, length = rows[i], seq_lens[i] + 1
        says = bool(before["alive"][row] and good[n])
        said.append(int(says))
        stops = tokens[n] in before["stops"][row] and length >= before["min_len"][row]
        after["alive"][row] = says and not stops and length < before["limit"][row]
        if says:
            after["last"][row] = tokens[n]
    assert counts.tolist() == said
    for name, column in after.items():
        np.testing.assert_array_equal(state[name].numpy(), column, err_msg=name)
