"""What --deterministic picks does not depend on the number of rows, nor on what kind of step they come in."""

import pytest
import torch
from paged import Case, outputs

from device.kernels.interpreter import HERE, interpreted
from octavo.device.attention.triton import TritonAttention
from octavo.device.kernels.fixed import ROWS, by_blocks, pieces
from octavo.device.kernels.variants import listing
from octavo.device.quant.base import LinearSpec
from octavo.device.quant.plain import JoinedLinear


def test_blocks_have_one_size_and_rows_their_places():
    x, add = torch.randn(75, 8), torch.randn(75, 3)
    weight = torch.randn(8, 3)
    seen = []

    def f(part, more):
        seen.append((len(part), len(more)))
        return part @ weight + more

    torch.testing.assert_close(by_blocks(f, x, add), x @ weight + add)
    assert set(seen) == {(ROWS, ROWS)}


@pytest.mark.parametrize("shape", [(1, 100_000), (7, 10_000), (300, 64), (0, 5)])
def test_pieces_are_of_one_thread_and_all(shape):
    x = torch.empty(shape)
    parts = [x[piece] for piece in pieces(x)]
    assert sum(map(len, parts)) == len(x)
    assert all(len(part) == 1 or part.numel() <= 32768 for part in parts)


@interpreted
@pytest.mark.parametrize("joints", [{"adds": True}, {"act": "silu"}, {"bias": True}])
def test_a_linear_multiplies_alike_whatever_the_number_of_rows(joints):
    outs = (96, 96) if "act" in joints else (192,)
    method = JoinedLinear(LinearSpec(name="a", inner=80, outs=outs, fixed=True, **joints), HERE, torch.bfloat16)
    method.weight = torch.zeros(192, 80, dtype=torch.bfloat16, device=HERE)
    method.bias = torch.zeros(192, dtype=torch.bfloat16, device=HERE) if "bias" in joints else None
    method._missing = 0
    with listing() as found:
        for rows in (1, 2, 16, 33, 64, 65, 300):
            x = torch.zeros(rows, 80, dtype=torch.bfloat16, device=HERE)
            method.apply(x, torch.zeros(rows, 192, dtype=torch.bfloat16, device=HERE) if "adds" in joints else None)
    assert {one.name for one in found} == {"tile"}
    assert len({one.options for one in found}) == 1


@interpreted
@pytest.mark.parametrize("window", [None, 9])
def test_a_token_is_attended_by_one_kernel_whatever_it_comes_with(window):
    case = Case(rows=((5, 1), (17, 4), (0, 9)), window=window)
    backend = TritonAttention()
    backend.fixed = True
    with listing() as found:
        outputs(backend, case, HERE, torch.float32)
    assert {one.name for one in found} == {"ready", "pieces"}
    assert len({one.options for one in found if one.name == "pieces"}) == 1
    plain = outputs(TritonAttention(), case, HERE, torch.float32)
    for mine, other in zip(outputs(backend, case, HERE, torch.float32), plain, strict=True):
        torch.testing.assert_close(mine, other, rtol=2e-4, atol=2e-5)
