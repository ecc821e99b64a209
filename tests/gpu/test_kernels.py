"""Triton kernels on a GPU: the interpreter's tests again, and attention at real sizes in every dtype."""

import pytest
import torch

from octavo.device.attention import triton
from octavo.device.attention.cpu import CPUAttention
from octavo.device.attention.triton import Decode, TritonAttention
from octavo.device.kernels.joined import joined, joined_torch, squares_of
from tests.paged import Case, outputs
from tests.unit.device.attention.test_triton import *  # noqa: F403
from tests.unit.device.kernels.test_triton_linear import *  # noqa: F403
from tests.unit.device.kernels.test_triton_step import *  # noqa: F403

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here"),
]
LENGTHS = (257, 40, 1023, 5, 64, 700, 128, 1)
SIZES = [
    Case(rows=((300, 1), (0, 200)), page=64, heads=(16, 8), dim=128),
    Case(rows=((2000, 1),), page=64, heads=(16, 8), dim=128, decodes=3),
    Case(rows=tuple((n, 1 + 70 * (n % 2)) for n in LENGTHS), page=64, heads=(32, 8), dim=128),
    Case(rows=tuple((n, 1) for n in LENGTHS * 3), page=16, heads=(8, 4), dim=256, window=100, softcap=30.0),
    Case(rows=tuple((n, 1) for n in LENGTHS * 9), page=64, heads=(14, 2), dim=64, sinks=True, norms=False),
    Case(rows=tuple((n % 300, 1) for n in LENGTHS * 32), page=64, heads=(16, 8), dim=128, decodes=1),
]


#: As the table or the rule says, and ways that it may say.
HOW = {"chosen": None, "narrow": Decode(16, 1, 1, 64, 1, 3, 2), "many": Decode(64, 1, 1, 1, 4, 2, 2, 4)}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("nth", range(len(SIZES)))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_attention_as_on_a_cpu(nth, dtype, how, monkeypatch):
    if (way := HOW[how]) is not None:
        monkeypatch.setattr(triton, "choose", lambda *_: way)
    # The CPU's answer to the same rounded numbers, in float32.
    bound = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    mine = outputs(TritonAttention(), SIZES[nth], torch.device("cuda"), dtype, dirt=255)
    with torch.device("cpu"):
        theirs = outputs(CPUAttention(), SIZES[nth], torch.device("cpu"), torch.float32, rounded=dtype)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=bound, rtol=bound)


@pytest.mark.parametrize("rows", [1, 2, 8, 17, 33, 64, 65])
@pytest.mark.parametrize("size", [(1024, 2048), (1024, 3072), (960, 576), (4096, 4096), (896, 4864)], ids=str)
def test_a_linear_of_real_size(rows, size):
    torch.manual_seed(rows)
    out, inner = size
    x = torch.randn(rows, inner, dtype=torch.bfloat16, device="cuda")
    weight = torch.randn(out, inner, dtype=torch.bfloat16, device="cuda") / inner**0.5
    add = torch.randn(rows, out, dtype=torch.bfloat16, device="cuda")
    for given in ({"eps": 1e-6}, {"eps": 1e-6, "act": "silu"}, {"add": add}):
        wide = {name: value.float() if name == "add" else value for name, value in given.items()}
        copies = [{name: value.clone() if name == "add" else value for name, value in given.items()} for _ in range(2)]
        mine, again = (joined(x, weight, **copy) for copy in copies)
        theirs = joined_torch(x.float(), weight.float(), **wide)
        torch.testing.assert_close(mine.float(), theirs, atol=3e-2, rtol=3e-2)
        assert torch.equal(mine, again)
    torch.testing.assert_close(squares_of(mine).sum(1), mine.float().square().sum(1))
