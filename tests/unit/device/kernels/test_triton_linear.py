"""Linears with their joints, and what they are made of, under Triton's interpreter against plain torch."""

import pytest
import torch

from octavo.device.kernels import joined as room
from octavo.device.kernels.activation import gated_torch, gated_triton
from octavo.device.kernels.joined import Tile, joined, joined_torch, squares_of
from octavo.device.kernels.norm import rms_norm_torch, rms_norm_triton
from tests.unit.device.kernels.interpreter import HERE, interpreted

pytestmark = interpreted


@pytest.fixture(autouse=True)
def here():
    with HERE:
        yield


def close(mine, theirs):
    torch.testing.assert_close(mine, theirs, atol=4e-3, rtol=4e-3)


@pytest.mark.parametrize("act", ["silu", "gelu", "gelu_tanh"])
def test_norm_and_activation(act):
    x, gain = torch.randn(3, 72, dtype=torch.float16), torch.randn(72)
    close(rms_norm_triton(x, gain, 1e-5), rms_norm_torch(x, gain, 1e-5))
    close(rms_norm_triton(x, None, 1e-5), rms_norm_torch(x, None, 1e-5))
    close(gated_triton(x, act), gated_torch(x, act))


@pytest.mark.parametrize("rows", [1, 3, 17])
@pytest.mark.parametrize("joint", ["norm", "act", "add"])
@pytest.mark.parametrize("bias", [False, True])
def test_a_linear_does_its_joints(rows, joint, bias, monkeypatch):
    monkeypatch.setattr(room, "choose", lambda m, n, k: Tile(16, 16, 32, 1 + rows % 2, 2, 4))
    inner, out = {"norm": (256, 48), "act": (1536, 48), "add": (320, 40)}[joint]
    x = torch.randn(rows, inner, dtype=torch.float16)
    weight = torch.randn(out, inner, dtype=torch.float16) / inner**0.5
    given = {
        "norm": {"eps": 1e-5},
        "act": {"eps": 1e-5, "act": "silu"},
        "add": {"add": torch.randn(rows, out, dtype=torch.float16)},
    }[joint]
    shift = torch.randn(out, dtype=torch.float16) if bias else None
    mine = joined(x, weight, shift, **given)
    theirs = joined_torch(x, weight, shift, **given)
    close(mine, theirs)
    torch.testing.assert_close(squares_of(mine).sum(1), mine.float().square().sum(1))
