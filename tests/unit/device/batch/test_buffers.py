import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

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
