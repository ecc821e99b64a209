"""The Triton backend under Triton's interpreter, against the CPU's."""

import pytest
import torch

from octavo.device.attention import triton
from octavo.device.attention.cpu import CPUAttention
from octavo.device.attention.triton import Decode, TritonAttention
from tests.paged import Case, outputs
from tests.unit.device.kernels.interpreter import HERE, interpreted

CASES = [
    (Case(rows=((5, 1), (17, 4))), Decode(16, 2, 1, True, 4, 2, 0)),
    (Case(heads=(3, 1), dim=24, page=2, window=6, rows=((7, 1), (3, 5))), Decode(4, 2, 2, True, 4, 2, 0)),
    (
        Case(heads=(2, 2), softcap=3.0, sinks=True, norms=False, rotary=8, page=32, rows=((40, 1), (0, 6))),
        Decode(16, 3, 1, False, 4, 2, 0),
    ),
    (Case(rotary=0, v_dim=8, sinks=True, window=1, page=4, rows=((9, 1), (6, 2))), Decode(16, 1, 1, True, 4, 2, 0)),
    (Case(rows=((70, 1), (0, 18)), page=16, heads=(2, 1), decodes=1), Decode(32, 4, 2, True, 4, 2, 0)),
    (Case(rows=((70, 1), (1, 1), (33, 1)), page=16, heads=(6, 2), window=50), Decode(16, 2, 1, 32, 4, 2, 0, 2, 1)),
    (Case(rows=((70, 1), (1, 1)), page=4, heads=(3, 1), decodes=2), Decode(16, 1, 1, 16, 4, 2, 0)),
]
#: A program's share, in these: a part of a row, whole rows and parts, everything. Programs are of two multiprocessors.
SHARED = [
    (Case(rows=((70, 1), (3, 1), (131, 1), (0, 1), (40, 1)), page=16, heads=(4, 2)), (16, 1)),
    (Case(rows=((70, 1), (3, 1), (131, 1), (0, 1), (40, 1)), page=16, heads=(4, 2)), (16, 3)),
    (Case(rows=((70, 1), (3, 1), (131, 1), (0, 1), (40, 1)), page=16, heads=(4, 2)), (16, 11)),
    (Case(heads=(3, 1), dim=24, page=2, window=6, rows=((7, 1), (3, 5), (50, 1))), (16, 2)),
    (Case(heads=(2, 2), softcap=3.0, sinks=True, norms=False, rotary=8, page=32, rows=((40, 1), (0, 6))), (32, 3)),
    (Case(rotary=0, v_dim=8, sinks=True, window=1, page=4, rows=((9, 1), (6, 2))), (16, 1)),
    (Case(rotary=0, v_dim=8, sinks=True, window=40, page=4, rows=((90, 1), (6, 1))), (16, 2)),
    (Case(rows=((70, 1), (0, 18)), page=16, heads=(2, 1), decodes=1), (32, 1)),
]


@interpreted
@pytest.mark.parametrize("nth", range(len(CASES)))
def test_as_the_cpu_does(nth, monkeypatch):
    case, how = CASES[nth]
    agree(case, how, nth, monkeypatch)


@interpreted
@pytest.mark.parametrize("apart", [0, 1])
@pytest.mark.parametrize("nth", range(len(SHARED)))
def test_shares_of_equal_work_are_as_the_cpu_has_it(nth, apart, monkeypatch):
    case, (tile, programs) = SHARED[nth]
    monkeypatch.setattr(triton, "processors", lambda _: 2)
    agree(case, Decode(tile, 0, 1, 32, 4, 2, 0, programs, apart), nth, monkeypatch)


def agree(case: Case, how: Decode, nth: int, monkeypatch) -> None:
    monkeypatch.setattr(triton, "choose", lambda *_: how)
    dtype = [torch.float32, torch.float16][nth % 2]
    bound = {torch.float32: 1e-5, torch.float16: 5e-3}[dtype]
    mine = outputs(TritonAttention(), case, HERE, dtype, dirt=255)
    with torch.device("cpu"):
        theirs = outputs(CPUAttention(), case, torch.device("cpu"), dtype)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=bound, rtol=bound)
