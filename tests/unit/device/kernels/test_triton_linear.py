"""Linears with their joints, and what they are made of, under Triton's interpreter against plain torch."""

import pytest
import torch

from octavo.device.kernels import joined as room
from octavo.device.kernels import tuned
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
    monkeypatch.setattr(room, "choose", lambda m, n, k, joint: Tile(16, 16, 32, 1 + rows % 2, 2, 4))
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


#: Rows, weight rows, columns; and a tile: whole and ragged in each, one row tile and several, splits and lines ahead.
SHAPES = [
    ((70, 96, 128), Tile(32, 32, 64, 1, 2, 4, 0)),
    ((70, 90, 120), Tile(32, 32, 64, 2, 2, 4, 1)),
    ((65, 64, 192), Tile(64, 64, 64, 3, 3, 8, 1)),
    ((130, 40, 100), Tile(128, 16, 32, 1, 2, 4, 2)),
    ((33, 48, 128), Tile(16, 16, 64, 2, 1, 4, 2)),
]


@pytest.mark.parametrize(("sizes", "how"), SHAPES)
@pytest.mark.parametrize("words", ["", "norm", "norm+silu", "add", "add+bias", "norm+gelu_tanh+bias"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_any_tile_multiplies_as_torch_does(sizes, how, words, dtype):
    rows, out, inner = sizes
    x = torch.randn(rows, inner, dtype=dtype)
    weight = torch.randn(out, inner, dtype=dtype) / inner**0.5
    act = next((word for word in words.split("+") if word in ("silu", "gelu_tanh")), None)
    bias = torch.randn(out, dtype=dtype) if "bias" in words else None
    given = {"eps": 1e-5 if "norm" in words else None, "act": act}
    add = torch.randn(rows, out, dtype=dtype) if "add" in words else None
    assert room.joint(given["eps"], act, add, bias) == words
    assert how.fits(rows, out, inner)
    mine = room.tiled(x, weight, bias, how, add=add, **given)
    theirs = joined_torch(x, weight, bias, add=None if add is None else add.clone(), **given)
    if dtype == torch.float32:
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
    else:
        close(mine, theirs)
    torch.testing.assert_close(squares_of(mine).sum(1), mine.float().square().sum(1))


def test_a_table_says_what_multiplies():
    table = tuned.Table(
        {
            tuned.Linear(128, 64, 128, "norm"): (64, 32, 64, 2, 2, 4, 1, 3),
            tuned.Linear(16, 64, 128, "add"): None,
            tuned.Linear(16, 64, 128, "norm"): (16, 32, 64, 3, 2, 4, 0, 1),
        }
    )
    with tuned.using(table):
        assert room.choose(65, 64, 128, "norm") == room.choose(128, 64, 128, "norm") == Tile(64, 32, 64, 2, 2, 4, 1, 3)
        assert room.choose(3, 64, 128, "add") is None
        assert room.choose(3, 64, 128, "norm") is None, "128 columns are not cut in three"
        assert room.choose(3, 64, 128, "norm+silu") == room.rule(3, 64, 128)
        assert room.choose(129, 64, 128, "norm") is None
        x, weight = torch.randn(70, 128, dtype=torch.float16), torch.randn(64, 128, dtype=torch.float16) / 12
        close(joined(x, weight, eps=1e-5), joined_torch(x, weight, eps=1e-5))
