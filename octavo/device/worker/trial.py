"""A trial step: the model over a made-up prompt, with a cache of its own that goes again."""

from collections.abc import Mapping

import numpy as np
import torch

from octavo.common.math import cdiv
from octavo.device.attention.base import AttentionBackend
from octavo.device.layers.step import Bound
from octavo.device.models.base import CausalLM
from octavo.device.platforms.base import Platform
from octavo.device.runner.runner import ModelRunner
from octavo.wire.arrays import ints
from octavo.wire.kv import KVGroup
from octavo.wire.plan import Kind, NewRow, PageDiff, StepPlan
from octavo.wire.request import Sampling


def run_trial(
    model: CausalLM,
    platform: Platform,
    backends: Mapping[str, AttentionBackend],
    dtype: torch.dtype,
    tokens: int,
) -> None:
    """One prompt of ``tokens`` tokens, sampled once. Raises what the model raises."""
    groups: list[KVGroup] = []
    bound: dict[str, Bound] = {}
    for layer in model.attentions:
        if layer.shares is not None:
            bound[layer.name] = bound[layer.shares]
            continue
        spec = layer.spec(dtype.itemsize)
        page = backends[layer.name].pages(spec)[0]
        raw = platform.allocate((1 + cdiv(tokens + 1, page)) * page * spec.token_bytes)
        pages = raw.numel() // (page * spec.token_bytes)
        bound[layer.name] = Bound(
            backends[layer.name], backends[layer.name].view(spec, raw, pages, page, dtype), len(groups)
        )
        groups.append(KVGroup(spec, (layer.name,)))
    held = cdiv(tokens + 1, page)
    runner = ModelRunner(
        model, model.facts.vocab, groups, bound, rows=1, max_model_len=tokens + 1, page=page, device=platform.device
    )
    each = np.arange(len(groups))
    runner.forward(
        StepPlan(
            step=0,
            kind=Kind.MIXED,
            rows=ints([0]),
            epochs=ints([0]),
            computed=ints([0]),
            takes=ints([tokens]),
            known=ints([tokens]),
            samples=np.ones(1, np.bool_),
            drafts=ints([0]),
            chunk=ints(np.arange(tokens) % model.facts.vocab),
            new=[NewRow(0, 0, tokens, tokens, tokens + 1, 0, (), Sampling(seed=0, temperature=0.0))],
            pages=PageDiff(
                groups=ints(each),
                rows=ints(0 * each),
                starts=ints(0 * each),
                counts=ints(0 * each + held),
                pages=ints(np.tile(np.arange(1, held + 1), len(groups))),
            ),
        )
    )
    (ticket,) = runner.sample(None)
    result = ticket.wait()
    if result.fault is not None:
        raise RuntimeError(f"a trial step of {tokens} tokens failed: {result.fault}")
