"""Joints and the kernels behind them against their plain compositions."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from octavo.device.kernels.activation import gated
from octavo.device.kernels.linear import linear, linear_add, pack, packed_linear, packed_rows, packs
from octavo.device.kernels.norm import pair, rms_norm, rms_norm_paired
from octavo.device.layers.kit import Kit
from octavo.device.quant.plain import Plain

CPU = torch.device("cpu")
BF16 = torch.bfloat16
needs_packing = pytest.mark.skipif(not packs(CPU, BF16), reason="oneDNN packs no bfloat16 weights on this machine")


def exact_norm(x, weight, eps):
    x = x.double()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight.double()


@given(rows=st.integers(0, 40), width=st.sampled_from((8, 64, 576)), seed=st.integers(0, 99))
def test_norms(rows, width, seed):
    torch.manual_seed(seed)
    x, weight, eps = torch.randn(rows, width) * 3, torch.randn(width), 1e-5
    torch.testing.assert_close(rms_norm(x, weight, eps), exact_norm(x, weight, eps).float(), rtol=1e-5, atol=1e-5)
    narrow, signs = x.to(BF16), torch.tensor([[1.0], [-1.0]], dtype=BF16)
    for kept in (weight, weight.to(BF16)):
        want = exact_norm(narrow, kept, eps).to(BF16)
        torch.testing.assert_close(rms_norm(narrow, kept, eps), want, rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(rms_norm_paired(narrow, pair(kept), signs, eps), want, rtol=1e-2, atol=1e-2)


@needs_packing
@given(rows=st.integers(0, 70), bias=st.booleans(), strided=st.booleans())
def test_a_packed_weight_multiplies_like_the_plain_one(rows, bias, strided):
    torch.manual_seed(rows)
    weight, b = torch.randn(96, 64).to(BF16), torch.randn(96).to(BF16) if bias else None
    x = torch.randn(rows, 128).to(BF16)[:, :64] if strided else torch.randn(rows, 64).to(BF16)
    torch.testing.assert_close(packed_linear(x, pack(weight), b), linear(x, weight, b), rtol=2e-2, atol=0.3)


def test_linear_add_and_gated():
    x, weight, residual = torch.randn(5, 8), torch.randn(6, 8), torch.randn(5, 6)
    torch.testing.assert_close(linear_add(x, weight, residual), residual + x @ weight.T)
    gate, up = residual.chunk(2, -1)
    torch.testing.assert_close(gated(residual, "silu"), torch.nn.functional.silu(gate) * up)
    torch.testing.assert_close(gated(residual, "gelu"), torch.nn.functional.gelu(gate) * up)
    torch.testing.assert_close(gated(residual, "gelu_tanh"), torch.nn.functional.gelu(gate, approximate="tanh") * up)


def fill(kit):
    torch.manual_seed(0)
    given = {name: torch.randn(slot.shape) * 0.3 for name, slot in kit.slots.items()}
    for name, slot in kit.slots.items():
        slot.target().copy_(given[name])
        slot.filled()
    return given


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(BF16, marks=needs_packing)])
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("bias", [False, True])
def test_every_joint_is_its_composition(dtype, offset, bias):
    kit = Kit(device=CPU, dtype=dtype, scheme=Plain(), eps=1e-6, positions=4)
    at = kit.at("mlp")
    up = at.fused(["a", "b"], 16, [24, 24], bias=bias, norm=kit.norm("n", 16, offset=offset), act="silu")
    down = at.row("c", 24, 16, bias=bias)
    posted = at.row("d", 24, 16, bias=bias, post=kit.norm("p", 16, offset=offset))
    w = fill(kit)
    assert set(w) == {"n.weight", "p.weight"} | {
        f"mlp.{name}.{kind}" for name in "abcd" for kind in (("weight", "bias") if bias else ("weight",))
    }

    def product(x, name):
        return x @ w[f"mlp.{name}.weight"].T + w.get(f"mlp.{name}.bias", torch.zeros(1))

    x = torch.randn(20, 16)
    normed = exact_norm(x, w["n.weight"] + offset, 1e-6).float()
    inner = torch.nn.functional.silu(product(normed, "a")) * product(normed, "b")
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.05, "atol": 0.15}
    for rows in (1, 20):
        given = x[:rows].to(dtype)
        got = up(given)
        torch.testing.assert_close(got.float(), inner[:rows], **close)
        want = product(inner, "c")
        torch.testing.assert_close(down(got).float(), want[:rows], **close)
        torch.testing.assert_close(down(got, add=given).float(), (want + x)[:rows], **close)
        want = exact_norm(product(inner, "d"), w["p.weight"] + offset, 1e-6).float()
        torch.testing.assert_close(posted(got, add=given).float(), (want + x)[:rows], **close)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(BF16, marks=needs_packing)])
def test_a_tied_head_uses_the_embeddings_matrix(dtype):
    kit = Kit(device=CPU, dtype=dtype, scheme=Plain(), eps=1e-6, positions=4)
    embed = kit.embed("embed", 40, 16, scale=4.0)
    head = kit.head("lm_head", 16, 40, norm=kit.norm("n", 16), tied=embed, softcap=5.0)
    w = fill(kit)
    assert set(w) == {"embed.weight", "n.weight"}
    assert kit.unread == {"lm_head.weight"}
    if dtype == torch.float32:
        assert head.method.weight is embed.weight
    ids = torch.tensor([3, 39, 0])
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.05, "atol": 0.1}
    torch.testing.assert_close(embed(ids).float(), w["embed.weight"][ids] * 4.0, **close)
    x = torch.randn(3, 16)
    want = torch.tanh(exact_norm(x, w["n.weight"], 1e-6).float() @ w["embed.weight"].T / 5.0) * 5.0
    got = head(x.to(dtype))
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want, **close)


@needs_packing
@pytest.mark.parametrize("shape", [(320, 64), (48, 576), (1024, 96), (50, 64), (64, 40)])
def test_rows_of_a_packed_weight_are_the_rows(shape):
    """Where a layout is not known the answer is None, never other numbers."""
    weight = torch.randn(shape).to(BF16)
    take = packed_rows(pack(weight), weight)
    if take is not None:
        for ids in (torch.arange(shape[0]), torch.tensor([shape[0] - 1]), torch.tensor([], dtype=torch.int64)):
            assert torch.equal(take(ids), weight[ids])
    assert packed_rows(pack(torch.randn(shape).to(BF16)), weight) is None
