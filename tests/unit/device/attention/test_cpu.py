"""Paged attention against the definition, over random tables, chunkings, windows and layouts."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.common.math import cdiv
from octavo.device.attention.base import AttentionNeed, LayerAttention
from octavo.device.attention.cpu import CPUAttention
from octavo.device.attention.select import select
from octavo.device.batch.batch import BatchShape, InputBatch
from octavo.device.kernels import paged_prefill
from octavo.errors import ConfigError
from octavo.wire.arrays import ints
from octavo.wire.kv import KVSpec
from octavo.wire.plan import Kind


def attention(layer: LayerAttention, q, k, v):
    """Softmax attention of one sequence, float64, a query at a time: q [L, Hq, D], k, v [L, Hk, D] -> [L, Hq, Dv]."""
    group = layer.q_heads // layer.kv_heads
    out = np.zeros((len(q), layer.q_heads, layer.v_dim))
    for i in range(len(q)):
        low = 0 if layer.window is None else max(0, i + 1 - layer.window)
        for head in range(layer.q_heads):
            scores = k[low : i + 1, head // group] @ q[i, head] * layer.scale
            if layer.softcap is not None:
                scores = layer.softcap * np.tanh(scores / layer.softcap)
            extra = [] if layer.sinks is None else [float(layer.sinks[head])]
            weights = np.exp(np.append(scores, extra) - max([*scores, *extra]))
            weights = weights / weights.sum()
            out[i, head] = weights[: len(scores)] @ v[low : i + 1, head // group]
    return out


@st.composite
def cases(draw):
    lens = draw(st.lists(st.integers(1, 40), min_size=1, max_size=5))
    cuts = [draw(st.lists(st.integers(1, n), max_size=4, unique=True)) if n > 1 else [] for n in lens]
    kv_heads = draw(st.integers(1, 2))
    layer = {
        "q_heads": kv_heads * draw(st.integers(1, 3)),
        "kv_heads": kv_heads,
        "head_dim": draw(st.sampled_from((2, 4))),
        "v_dim": draw(st.sampled_from((2, 6))),
        "window": draw(st.sampled_from((None, 1, 3, 9, 100))),
        "softcap": draw(st.sampled_from((None, 2.0))),
        "sinks": draw(st.booleans()),
        "norms": draw(st.booleans()),
    }
    return lens, cuts, layer, draw(st.sampled_from((1, 2, 4, 8, 32))), draw(st.booleans()), draw(st.integers(0, 2**31))


def batch_of(rows, starts, takes, tables, page):
    """The step in which each row computes ``takes`` tokens from ``starts`` on; single tokens first."""
    order = sorted(range(len(rows)), key=lambda i: (takes[i] != 1, -starts[i]))
    rows, starts, takes = ([column[i] for i in order] for column in (rows, starts, takes))
    positions = [p for s, t in zip(starts, takes, strict=True) for p in range(s, s + t)]
    index = [i for i, t in enumerate(takes) for _ in range(t)]
    slots = [int(tables[rows[i], p // page]) * page + p % page for i, p in zip(index, positions, strict=True)]
    ends = np.cumsum(takes)
    lens = np.add(starts, takes).astype(np.int32)
    none = torch.empty(0, dtype=torch.int64)
    batch = InputBatch(
        shape=BatchShape(Kind.MIXED, sum(takes), len(rows)),
        decodes=sum(t == 1 for t in takes),
        rows=torch.tensor(rows),
        ids=none,
        positions=torch.tensor(positions)[None],
        query_start=torch.tensor([0, *ends]),
        seq_lens=torch.from_numpy(lens),
        logits_at=none,
        logit_rows=none,
        slots=[torch.tensor(slots)],
        tables=[torch.from_numpy(tables[rows, : cdiv(int(lens.max()), page)])],
        page=page,
        host_rows=ints(rows),
        host_starts=ints(ends - takes),
        host_takes=ints(takes),
        host_lens=lens,
        host_logit_rows=np.empty(0, np.int64),
    )
    return batch, rows, index, positions


@settings(max_examples=60, deadline=None)
@given(cases())
def test_paged_is_contiguous_over_any_tables_and_chunks(case):
    lens, cuts, shape, page, alike, seed = case
    rng = np.random.default_rng(seed)
    normed, sunk = shape.pop("norms"), shape.pop("sinks")
    dim = shape["head_dim"]
    angles = torch.from_numpy(rng.normal(size=(64, dim // 2))).float()
    layer = LayerAttention(
        name="a",
        scale=dim**-0.5,
        sinks=torch.from_numpy(rng.normal(size=shape["q_heads"])) if sunk else None,
        q_norm=torch.from_numpy(rng.normal(size=dim)).float() if normed else None,
        k_norm=torch.from_numpy(rng.normal(size=dim)).float() if normed else None,
        rope=(angles.cos(), angles.sin()),
        **shape,
    )
    wide = max(cdiv(n, page) for n in lens)
    tables = np.zeros((len(lens), wide + 1), np.int32)
    pages = 1 + sum(cdiv(n, page) for n in lens)
    free = rng.permutation(np.arange(1, pages)).tolist()
    for row, n in enumerate(lens):
        tables[row, : cdiv(n, page)] = [free.pop() for _ in range(cdiv(n, page))]
    spec, backend = layer.spec(4), CPUAttention()
    raw = torch.from_numpy(
        rng.integers(0, 100, pages * page * spec.token_bytes + (0 if alike else pages * 8)).astype(np.uint8)
    )
    cache = backend.view(spec, raw, pages, page, torch.float32)

    qkv = [rng.normal(size=(n, sum(layer.sizes))).astype(np.float32) for n in lens]
    got = [np.zeros((n, layer.q_heads, layer.v_dim)) for n in lens]
    ends = [sorted({*c, n}) for c, n in zip(cuts, lens, strict=True)]
    starts = [0] * len(lens)
    while any(ends):
        rows = [row for row in range(len(lens)) if ends[row] and (rng.random() < 0.7 or sum(map(bool, ends)) == 1)]
        if not rows:
            continue
        takes = [ends[row].pop(0) - starts[row] for row in rows]
        batch, order, index, positions = batch_of(rows, [starts[row] for row in rows], takes, tables, page)
        packed = np.stack([qkv[order[i]][p] for i, p in zip(index, positions, strict=True)])
        out = backend.attend(layer, torch.from_numpy(packed), cache, backend.plan(batch, spec, 0))
        for i, p, value in zip(index, positions, out.view(len(index), layer.q_heads, -1).numpy(), strict=True):
            got[order[i]][p] = value
        for row, take in zip(rows, takes, strict=True):
            starts[row] += take

    for row, n in enumerate(lens):
        heads = qkv[row][:, : (layer.q_heads + layer.kv_heads) * dim].reshape(n, -1, dim).astype(np.float64)
        if normed:
            weights = np.stack([layer.q_norm] * layer.q_heads + [layer.k_norm] * layer.kv_heads)
            heads = heads / np.sqrt((heads**2).mean(-1, keepdims=True) + layer.norm_eps) * weights
        turned = (heads[..., : dim // 2] + 1j * heads[..., dim // 2 :]) * np.exp(1j * angles[:n].numpy())[:, None]
        heads = np.concatenate((turned.real, turned.imag), -1)
        v = qkv[row][:, -layer.kv_heads * layer.v_dim :].reshape(n, layer.kv_heads, layer.v_dim)
        expected = attention(layer, heads[:, : layer.q_heads], heads[:, layer.q_heads :], v)
        np.testing.assert_allclose(got[row], expected, atol=2e-4)


@pytest.mark.parametrize(
    ("before", "window", "softcap"), [(0, None, None), (20, None, None), (300, 40, None), (0, None, 3.0)]
)
def test_a_long_piece_comes_in_blocks(monkeypatch, before, window, softcap):
    def attend():
        blocks = paged_prefill.Masks(torch.float32, q.device).blocks(50, before, window)
        return len(blocks), paged_prefill.prefill(q, k, v, blocks, 0.3, softcap)

    q, k, v = torch.randn(50, 4, 8), torch.randn(2, 50 + before, 8), torch.randn(2, 50 + before, 8)
    one, whole = attend()
    monkeypatch.setattr(paged_prefill, "BLOCK", 7)
    several, pieces = attend()
    assert (one, several) == (1, 8 if before else 1)
    torch.testing.assert_close(pieces, whole)


def test_views_of_two_groups_agree_on_what_a_page_is():
    backend, page, pages = CPUAttention(), 4, 5
    specs = KVSpec(2, 4, 4, 4), KVSpec(1, 2, 6, 4)
    raw = torch.zeros(pages * page * max(s.token_bytes for s in specs), dtype=torch.uint8)
    first, second = (backend.view(s, raw, pages, page, torch.float32) for s in specs)
    for view in (first, second):
        raw.zero_()
        view.data[3] = 1.0
        touched = raw.view(pages, -1).count_nonzero(1)
        assert touched[3] > 0
        assert touched.sum() == touched[3]


def test_a_backend_says_why_not():
    need = AttentionNeed(head_dim=8, v_dim=8, dtype=torch.bfloat16, cache_dtype=torch.float16, causal=True)
    with pytest.raises(ConfigError, match="the model's own type"):
        select(need, ("cpu",))
    backend, why = select(AttentionNeed(head_dim=8, v_dim=8, dtype=torch.float32, cache_dtype=torch.float32), ("cpu",))
    assert (backend.name, why) == ("cpu", "cpu (the first choice here)")
    with pytest.raises(ConfigError, match="did you mean 'cpu'"):
        select(need, ("cpu",), "cpus")


def one_step(layer, kind, qkv, backend=None, cache=None, page=4):
    """Two decodes and a first chunk over a cache whose earlier tokens are ``qkv``'s own; (output, backend, cache)."""
    lens, takes = [9, 6, 5], [1, 1, 5]
    tables = np.arange(1, 1 + 3 * 3, dtype=np.int32).reshape(3, 3)
    if backend is None:
        backend = CPUAttention()
        spec = layer.spec(kind.itemsize)
        raw = torch.zeros(10 * page * spec.token_bytes, dtype=torch.uint8)
        cache = backend.view(spec, raw, 10, page, kind)
        for row in (0, 1):
            batch, *_ = batch_of([row], [0], [lens[row] - 1], tables, page)
            backend.attend(layer, qkv[row, : lens[row] - 1].clone(), cache, backend.plan(batch, spec, 0))
    batch, order, index, positions = batch_of([0, 1, 2], [8, 5, 0], takes, tables, page)
    packed = torch.stack([qkv[order[i], p] for i, p in zip(index, positions, strict=True)])
    return backend.attend(layer, packed, cache, backend.plan(batch, layer.spec(kind.itemsize), 0)), backend, cache


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_half_precision_is_float32_but_for_rounding(kind):
    shape = {"name": "a", "q_heads": 4, "kv_heads": 2, "head_dim": 16, "v_dim": 16, "scale": 0.25}
    angles = torch.arange(12.0)[:, None] / torch.arange(1, 9)
    layer = LayerAttention(rope=(angles.cos(), angles.sin()), q_norm=torch.ones(16), k_norm=torch.ones(16), **shape)
    qkv = torch.randn(3, 12, sum(layer.sizes), generator=torch.Generator().manual_seed(1))
    half, *_ = one_step(layer, kind, qkv.to(kind))
    full, *_ = one_step(layer, torch.float32, qkv.to(kind).float())
    assert half.dtype == kind
    torch.testing.assert_close(half.float(), full, atol=0.05, rtol=0.05)


def test_a_layer_that_shares_reads_the_cache_of_another():
    shape = {"q_heads": 4, "kv_heads": 2, "head_dim": 8, "v_dim": 8, "scale": 0.3}
    owner, reader = LayerAttention(name="a", **shape), LayerAttention(name="b", shares="a", **shape)
    qkv = torch.randn(3, 12, sum(owner.sizes))
    own, backend, cache = one_step(owner, torch.float32, qkv)
    before = cache.data.clone()
    read, *_ = one_step(reader, torch.float32, qkv[..., : reader.sizes[0]], backend, cache)
    torch.testing.assert_close(read, own)
    assert torch.equal(cache.data, before)
