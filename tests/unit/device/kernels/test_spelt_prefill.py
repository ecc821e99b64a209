"""Prompt attention by two matrix products equals torch's own, at every cut of rows and keys."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from octavo.device.kernels import spelt_prefill
from octavo.device.kernels.spelt_prefill import prefill


def wanted(q, keys, values, scale):
    take, length = len(q), keys.shape[1]
    mask = torch.ones(take, length, dtype=torch.bool).tril(length - take)
    out = scaled_dot_product_attention(
        q.transpose(0, 1)[None], keys[None], values[None], attn_mask=mask, scale=scale, enable_gqa=True
    )
    return out[0].transpose(0, 1)


def case(take, before, kv_heads, group, dim=16, width=16, dtype=torch.float32):
    torch.manual_seed(take * 1000 + before)
    held = torch.randn(before + take, kv_heads * (dim + width), dtype=dtype)  # as the cache has them
    keys = held[:, : kv_heads * dim].unflatten(1, (kv_heads, dim)).transpose(0, 1)
    values = held[:, kv_heads * dim :].unflatten(1, (kv_heads, width)).transpose(0, 1)
    return torch.randn(take, kv_heads * group, dim, dtype=dtype), keys, values


@given(
    st.integers(1, 300),
    st.integers(0, 200),
    st.sampled_from([(1, 1), (2, 3), (3, 1)]),
    st.sampled_from([64, 2048, 1 << 19]),
)
def test_it_equals_torchs_own(take, before, heads, room):
    q, keys, values = case(take, before, *heads, width=8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spelt_prefill, "SCORES", room)
        torch.testing.assert_close(prefill(q, keys, values, 0.25), wanted(q, keys, values, 0.25), atol=1e-5, rtol=1e-5)


def test_bfloat16_is_float32_but_for_rounding():
    q, keys, values = case(200, 100, 2, 3, dtype=torch.bfloat16)
    exact = wanted(q.float(), keys.float(), values.float(), 0.25)
    assert (prefill(q, keys, values, 0.25).float() - exact).abs().max() < 0.03
