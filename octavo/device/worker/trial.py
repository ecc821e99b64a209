"""A trial step: the model over made-up prompts, with a cache of its own that goes again."""

from collections.abc import Mapping

import numpy as np
import torch

from octavo.common.math import cdiv
from octavo.device.attention.base import AttentionBackend
from octavo.device.layers.step import Bound
from octavo.device.models.base import CausalLM
from octavo.device.platforms.base import Platform
from octavo.device.runner.later import make_runner
from octavo.device.runner.runner import ModelRunner
from octavo.wire.arrays import ints
from octavo.wire.kv import KVGroup, KVSpec
from octavo.wire.plan import Kind, NewRow, PageDiff, StepPlan
from octavo.wire.request import Sampling

#: What a row asks of sampling that takes the most memory.
_HOT = Sampling(seed=0, temperature=0.7, top_k=20, top_p=0.9)


def run_trial(
    model: CausalLM,
    platform: Platform,
    backends: Mapping[str, AttentionBackend],
    dtype: torch.dtype,
    tokens: int,
    *,
    rows: int = 1,
    hot: bool = False,
    decode: bool = False,
    positions: int = 0,
) -> None:
    """``rows`` prompts of ``tokens`` tokens together, each sampled once (``hot``: with a temperature and a cut), and
    ``decode``: then a decode step of all. Layers of a kind write to one cache. ``positions``: of the longest request
    there may be; rows are as wide, for which kernels were compiled ahead. Raises what the model raises."""
    takes = np.full(rows, tokens // rows)
    takes[: tokens % rows] += 1
    longest = int(takes.max()) + 1 + decode
    specs: dict[KVSpec, list[str]] = {}
    for layer in model.attentions:
        if layer.shares is None:
            specs.setdefault(layer.spec(dtype.itemsize), []).append(layer.name)
    bound: dict[str, Bound] = {}
    page = 0
    for number, (spec, names) in enumerate(specs.items()):
        backend = backends[names[0]]
        page = backend.pages(spec)[0]
        held = cdiv(longest, page)
        raw = platform.allocate((1 + rows * held) * page * spec.token_bytes)
        cache = backend.view(spec, raw, 1 + rows * held, page, dtype)
        bound |= {name: Bound(backend, cache, number) for name in names}
    for layer in model.attentions:
        if layer.shares is not None:
            bound[layer.name] = bound[layer.shares]
    runner = make_runner(
        model,
        model.facts.vocab,
        [KVGroup(spec, tuple(names)) for spec, names in specs.items()],
        bound,
        rows=rows,
        max_model_len=max(longest, positions),
        page=page,
        device=platform.device,
        platform=platform,
        lead=1,
        eager=True,
    )
    sampling = _HOT if hot else Sampling(seed=0, temperature=0.0)
    each, all_rows, groups = ints(np.arange(rows)), ints(np.zeros(rows)), len(specs)
    plan = StepPlan(
        step=0,
        kind=Kind.MIXED,
        rows=each,
        epochs=all_rows,
        computed=all_rows,
        takes=ints(takes),
        known=ints(takes),
        samples=np.ones(rows, np.bool_),
        drafts=all_rows,
        chunk=ints(np.arange(tokens) % model.facts.vocab),
        new=[NewRow(row, 0, int(take), int(take), longest, 0, (), sampling) for row, take in enumerate(takes.tolist())],
        pages=PageDiff(
            groups=ints(np.repeat(np.arange(groups), rows)),
            rows=ints(np.tile(each, groups)),
            starts=ints(np.zeros(groups * rows)),
            counts=ints(np.full(groups * rows, held)),
            pages=ints(np.tile(np.arange(1, rows * held + 1), groups)),
        ),
    )
    _run(runner, plan)
    if decode:
        ones = np.ones(rows)
        nothing = ints(0 * ones)
        _run(
            runner,
            StepPlan(1, Kind.DECODE, each, all_rows, ints(takes), ints(ones), nothing, plan.samples, nothing),
        )


def _run(runner: ModelRunner, plan: StepPlan) -> None:
    runner.forward(plan)
    (ticket,) = runner.sample(None)
    result = ticket.wait(600.0)
    if result.fault is not None:
        if result.fault.startswith("OutOfMemoryError"):
            raise torch.OutOfMemoryError(result.fault)
        raise RuntimeError(f"a trial step of {plan.tokens} tokens failed: {result.fault}")
