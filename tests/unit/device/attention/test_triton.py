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
    (Case(rows=((70, 1), (1, 1), (33, 1)), page=16, heads=(6, 2), window=50), Decode(16, 2, 1, 32, 1, 2, 0, 2)),
    (Case(rows=((70, 1), (1, 1)), page=4, heads=(3, 1), decodes=2), Decode(16, 1, 1, 16, 4, 2, 0)),
]


@interpreted
@pytest.mark.parametrize("nth", range(len(CASES)))
def test_as_the_cpu_does(nth, monkeypatch):
    case, how = CASES[nth]
    monkeypatch.setattr(triton, "choose", lambda *_: how)
    dtype = [torch.float32, torch.float16][nth % 2]
    bound = {torch.float32: 1e-5, torch.float16: 5e-3}[dtype]
    mine = outputs(TritonAttention(), case, HERE, dtype, dirt=255)
    with torch.device("cpu"):
        theirs = outputs(CPUAttention(), case, torch.device("cpu"), dtype)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=bound, rtol=bound)
