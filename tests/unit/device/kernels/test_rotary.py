import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from octavo.device.kernels.kvstore import store
from octavo.device.kernels.qk_norm import qk_norm
from octavo.device.kernels.rope import rope_, turns


@given(st.integers(1, 4), st.integers(0, 3), st.integers(0, 2**31))
def test_rope_turns_pairs_of_halves_and_leaves_the_rest(half, rest, seed):
    rng = np.random.default_rng(seed)
    angles = rng.normal(size=(20, half))
    x = rng.normal(size=(5, 3, 2 * half + rest)).astype(np.float32)
    at = rng.integers(0, 20, 5)
    tables = (torch.from_numpy(t.astype(np.float32)) for t in (np.cos(angles), np.sin(angles)))
    got = torch.from_numpy(x.copy())
    rope_(got, *turns(*tables, torch.from_numpy(at), got.dtype))
    turned = (x[..., :half] + 1j * x[..., half : 2 * half]) * np.exp(1j * angles[at])[:, None]
    expected = np.concatenate((turned.real, turned.imag, x[..., 2 * half :]), -1)
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-5)


def test_the_norm_of_bfloat16_is_computed_in_float32():
    x, weight = torch.randn(4, 2, 8).bfloat16(), torch.randn(8).bfloat16()
    assert torch.equal(qk_norm(x, weight, 1e-6), qk_norm(x.float(), weight.float(), 1e-6).bfloat16())


def test_qk_norm_is_the_formula():
    x, weight = torch.randn(6, 3, 8), torch.randn(8)
    expected = x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    torch.testing.assert_close(qk_norm(x, weight, 1e-5), expected)


def test_store_puts_each_token_into_its_slot():
    rows = torch.randn(3, 8)
    for cache in (torch.zeros(3, 4, 8), torch.zeros(3, 50)[:, :32].unflatten(1, (4, 8))):
        store(cache, torch.tensor([7, 2, 11]), rows)
        for token, slot in enumerate((7, 2, 11)):
            assert torch.equal(cache[slot // 4, slot % 4], rows[token])
        assert cache.count_nonzero() == rows.numel()
