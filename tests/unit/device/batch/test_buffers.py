import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from octavo.device.batch import buffers
from octavo.device.batch.blocks import BlockTables
from octavo.device.batch.buffers import Columns, HostMirror, StagedTensor
from octavo.wire.arrays import ints
from octavo.wire.plan import PageDiff

CPU = torch.device("cpu")
writes = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 6), st.lists(st.integers(-9, 9), min_size=1, max_size=3)), max_size=12
)


@given(writes, st.integers(0, 12))
def test_staged_writes_land_in_order_whenever_they_are_flushed(staged, flush_at):
    tensor = StagedTensor((5, 9), np.int32, CPU)
    expected = np.zeros((5, 9), np.int32)
    for i, (row, start, values) in enumerate(staged):
        tensor.stage(row, values, start)
        expected[row, start : start + len(values)] = values
        if i == flush_at:
            tensor.flush()
    tensor.flush()
    np.testing.assert_array_equal(tensor.tensor.numpy(), expected)


def test_a_mirror_on_a_cpu_is_the_host_array():
    mirror = HostMirror((3,), np.float32, CPU, fill=2)
    mirror.edit()[1] = 5
    assert mirror.flush().tolist() == [2, 5, 2]


def test_columns_travel_together_and_come_apart():
    a, b, c = Columns(CPU).ship(ints([1, 2]), ints([]), np.array([7], np.int64))
    assert (a.tolist(), b.tolist(), c.tolist()) == ([1, 2], [], [7])


def test_page_diffs_go_to_their_group_row_and_place():
    tables = BlockTables(2, 4, 32, 4, CPU)
    tables.apply(PageDiff(ints([0, 1, 0]), ints([2, 2, 0]), ints([0, 1, 3]), ints([2, 1, 2]), ints([5, 6, 7, 8, 9])))
    assert tables[0][2, :3].tolist() == [5, 6, 0]
    assert tables[1][2, :3].tolist() == [0, 7, 0]
    assert tables[0][0, 3:5].tolist() == [8, 9]


@given(writes.filter(len))
def test_what_travels_names_each_element_once_and_its_last_value(staged):
    tensor = StagedTensor((5, 9), np.int32, CPU)
    expected = {}
    for row, start, values in staged:
        tensor.stage(row, values, start)
        expected |= {row * 9 + start + i: value for i, value in enumerate(values)}
    offsets, values = tensor.take()
    assert len(set(offsets.tolist())) == len(offsets)
    assert dict(zip(offsets.tolist(), values.tolist(), strict=True)) == expected


def test_arrays_travel_together_as_they_are(monkeypatch):
    monkeypatch.setattr(buffers, "shared", lambda device: False)
    monkeypatch.setattr(buffers, "pinned", lambda shape, dtype: torch.empty(tuple(shape), dtype=dtype))
    arrays = [np.array([1, 2**40]), ints([3, -4, 5]), np.array([True]), ints([]), np.array([0.5], np.float32)]
    sent = buffers.ship_all(arrays, CPU)
    for array, tensor in zip(arrays, sent, strict=True):
        assert tensor.numpy().dtype == array.dtype
        np.testing.assert_array_equal(tensor.numpy(), array)
    a, b = Columns(CPU).ship(ints([1, 2]), np.array([7], np.int64))
    assert (a.tolist(), b.tolist()) == ([1, 2], [7])


@given(st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(-9, 9)), max_size=4), max_size=6))
def test_a_mirror_sends_the_rows_that_were_edited(edits):
    with pytest.MonkeyPatch.context() as apart:
        apart.setattr(buffers, "shared", lambda device: False)
        apart.setattr(buffers, "pinned", lambda shape, dtype: torch.empty(tuple(shape), dtype=dtype))
        mirror = HostMirror((6, 2), np.int32, CPU, fill=-1)
        for some in edits:
            for row, value in some:
                mirror.edit(row)[row] = value
            np.testing.assert_array_equal(mirror.flush().numpy(), mirror.host)
        mirror.edit()[:] = 3
        np.testing.assert_array_equal(mirror.flush().numpy(), mirror.host)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 4), st.integers(0, 5), st.integers(0, 3)), max_size=8))
def test_any_diff_lands_where_it_says(entries):
    tables, counter = BlockTables(2, 4, 32, 4, CPU), 1
    expected = [np.zeros((5, 9), np.int32) for _ in range(2)]
    pages = []
    for group, row, start, count in entries:
        mine = list(range(counter, counter + count))
        counter += count
        expected[group][row, start : start + count] = mine
        pages += mine
    columns = zip(*entries, strict=True) if entries else ([], [], [], [])
    tables.apply(PageDiff(*map(ints, map(list, columns)), ints(pages)))
    for group in range(2):
        np.testing.assert_array_equal(tables[group].numpy(), expected[group])
