"""The same three steps (prompts, a mix, decode) by two attention backends, for tests of one against another."""

from dataclasses import dataclass

import numpy as np
import torch

from octavo.common.math import cdiv
from octavo.device.attention.base import AttentionBackend, LayerAttention
from octavo.device.batch.batch import BatchShape, InputBatch
from octavo.wire.arrays import ints
from octavo.wire.plan import Kind


@dataclass(frozen=True)
class Case:
    """A layer, a page size, and for each row (tokens before the mixed step, tokens in it)."""

    rows: tuple[tuple[int, int], ...] = ((5, 1), (17, 4), (0, 9))
    page: int = 8
    heads: tuple[int, int] = (4, 2)
    dim: int = 16
    v_dim: int | None = None
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    norms: bool = True
    rotary: int | None = None
    decodes: int = 2
    seed: int = 0


def layer_of(case: Case, device: torch.device, dtype: torch.dtype, rounded: torch.dtype) -> LayerAttention:
    rng = np.random.default_rng(case.seed)
    most = max(before + take for before, take in case.rows) + case.decodes
    angles = torch.from_numpy(rng.normal(size=(most, (case.rotary or case.dim) // 2))).float()
    gains = torch.from_numpy(1 + 0.3 * rng.normal(size=(2, case.dim))).to(rounded).to(device, dtype)
    sinks = torch.from_numpy(rng.normal(size=case.heads[0])).to(rounded).to(device, dtype)
    return LayerAttention(
        name="a",
        q_heads=case.heads[0],
        kv_heads=case.heads[1],
        head_dim=case.dim,
        v_dim=case.v_dim or case.dim,
        scale=case.dim**-0.5,
        window=case.window,
        softcap=case.softcap,
        sinks=sinks if case.sinks else None,
        q_norm=gains[0] if case.norms else None,
        k_norm=gains[1] if case.norms else None,
        rope=None if case.rotary == 0 else (angles.cos().to(device), angles.sin().to(device)),
    )


def step_of(starts, takes, tables, page, device) -> InputBatch:
    """Each row computes ``takes`` tokens from ``starts`` on; single tokens stand first."""
    positions = [p for s, t in zip(starts, takes, strict=True) for p in range(s, s + t)]
    index = [i for i, t in enumerate(takes) for _ in range(t)]
    slots = [int(tables[i, p // page]) * page + p % page for i, p in zip(index, positions, strict=True)]
    ends, lens = np.cumsum(takes), np.add(starts, takes).astype(np.int32)
    none = torch.empty(0, dtype=torch.int64, device=device)
    longer = [i for i, t in enumerate(takes) if t != 1]
    return InputBatch(
        shape=BatchShape(Kind.MIXED, sum(takes), len(takes)),
        decodes=longer[0] if longer else len(takes),
        rows=torch.arange(len(takes), device=device),
        ids=none,
        positions=torch.tensor(positions, device=device)[None],
        query_start=torch.tensor([0, *ends], device=device),
        seq_lens=torch.from_numpy(lens.astype(np.int64)).to(device),
        logits_at=none,
        logit_rows=none,
        slots=[torch.tensor(slots, device=device)],
        tables=[torch.from_numpy(tables).to(device)],
        page=page,
        host_rows=ints(range(len(takes))),
        host_starts=ints(ends - takes),
        host_takes=ints(takes),
        host_lens=lens,
    )


def outputs(
    backend: AttentionBackend,
    case: Case,
    device: torch.device,
    dtype: torch.dtype,
    dirt: int = 0,
    rounded: torch.dtype | None = None,
) -> list[torch.Tensor]:
    """What ``backend`` gives in each step, in float32 on the CPU. What a case draws depends on the case alone.
    ``dirt``: each byte of the cache before anything is stored (255 makes NaN). ``rounded``: what is given is rounded to
    that type."""
    rounded = rounded or dtype
    layer = layer_of(case, device, dtype, rounded)
    rng = np.random.default_rng(case.seed + 1)
    spec = layer.spec(dtype.itemsize)
    longest = [before + take + case.decodes for before, take in case.rows]
    tables = np.zeros((len(longest), max(cdiv(n, case.page) for n in longest)), np.int32)
    pages = 1 + sum(cdiv(n, case.page) for n in longest)
    free = iter(rng.permutation(np.arange(1, pages)))
    for row, n in enumerate(longest):
        tables[row, : cdiv(n, case.page)] = [next(free) for _ in range(cdiv(n, case.page))]
    raw = torch.full((pages * (case.page * spec.token_bytes + 64),), dirt, dtype=torch.uint8, device=device)
    cache = backend.view(spec, raw, pages, case.page, dtype)
    done = [0] * len(case.rows)
    plans = [[before for before, _ in case.rows], [take for _, take in case.rows], *[[1] * len(done)] * case.decodes]
    found = []
    for takes in plans:
        rows = [row for row in np.argsort([take != 1 for take in takes], kind="stable") if takes[row]]
        picked = [takes[row] for row in rows]
        batch = step_of([done[row] for row in rows], picked, tables[rows], case.page, device)
        qkv = torch.from_numpy(rng.normal(size=(sum(picked), sum(layer.sizes)))).to(rounded).to(device, dtype)
        with torch.inference_mode():
            out = backend.attend(layer, qkv, cache, backend.plan(batch, spec, 0))
        found.append(out.float().cpu())
        for row in rows:
            done[row] += takes[row]
    return found
