"""The kernel variants that a model's steps launch, listed before it is loaded: its real steps over tensors that nobody
fills, with every launch noted and none done.

Layers that differ in nothing a kernel knows (window, rope) are walked once. What lies in memory is one page of cache
and weights that are never touched.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from octavo.config.facts import ModelFacts
from octavo.device.attention.triton import TritonAttention
from octavo.device.kernels.launch import product
from octavo.device.kernels.variants import Variant, listing
from octavo.device.layers.kit import Kit
from octavo.device.layers.step import Bound
from octavo.device.models.base import CausalLM
from octavo.device.models.registry import MODELS
from octavo.device.platforms.cpu import CPU
from octavo.device.quant.base import LinearSpec, Norm
from octavo.device.quant.plain import JoinedLinear
from octavo.device.runner.decode import SIZES
from octavo.device.runner.later import AsyncRunner
from octavo.device.sampling.sampler import Draw
from octavo.wire.kv import KVGroup, KVSpec


def needed(
    facts: ModelFacts,
    dtype: torch.dtype,
    *,
    max_num_seqs: int,
    max_model_len: int,
    sizes: Sequence[int] = SIZES,
    draws: Sequence[Draw] = (Draw.GREEDY, Draw.WARM),
    mixed: Sequence[tuple[int, int]] = (),
    page: int | None = None,
    overlap: bool = True,
) -> list[Variant]:
    """What decode steps of ``sizes`` rows (those up to ``max_num_seqs``) and mixed steps of (tokens, rows) launch with
    these ways to draw. ``page``: tokens of a page, None for the backend's choice. ``overlap``: as for ``listing``.
    Quantised models are not known here."""
    kinds = dict.fromkeys(facts.windows or (None,))
    # two of each: what the first layer reads is not what a layer wrote
    windows = tuple(window for window in kinds for _ in range(2))
    with listing(overlap) as found:
        walk(
            replace(facts, layers=len(windows), windows=windows),
            dtype,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            sizes=sizes,
            draws=draws,
            mixed=mixed,
            page=page,
        )
    return found


@torch.inference_mode()
def walk(
    facts: ModelFacts,
    dtype: torch.dtype,
    *,
    max_num_seqs: int,
    max_model_len: int,
    sizes: Sequence[int],
    draws: Sequence[Draw],
    mixed: Sequence[tuple[int, int]] = (),
    page: int | None = None,
) -> None:
    """Take these steps on a model that holds nothing. Only where launches are ``taken``, by somebody who leaves 0 in
    whole numbers, as ``listing`` does."""
    platform: Any = CPU()
    backend = TritonAttention()
    model = _hollow(facts, dtype)
    specs: dict[KVSpec, list[str]] = {}
    for layer in model.attentions:
        specs.setdefault(layer.spec(dtype.itemsize), []).append(layer.name)
    page = page or backend.pages(next(iter(specs)))[0]
    bound: dict[str, Bound] = {}
    for number, (spec, names) in enumerate(specs.items()):
        raw = torch.zeros(2 * page * spec.token_bytes, dtype=torch.uint8)
        cache = backend.view(spec, raw, 2, page, dtype)
        bound |= {name: Bound(backend, cache, number) for name in names}
    runner = AsyncRunner(
        model,
        facts.vocab,
        [KVGroup(spec, tuple(names)) for spec, names in specs.items()],
        bound,
        rows=max_num_seqs,
        max_model_len=max_model_len,
        page=page,
        device=platform.device,
        platform=platform,
        lead=1,
        eager=True,
    )
    runner.warm([size for size in sizes if size <= max_num_seqs], draws, mixed, times=1)


def _hollow(facts: ModelFacts, dtype: torch.dtype) -> CausalLM:
    kit = Kit(device=torch.device("cpu"), dtype=dtype, scheme=_Hollow(), eps=facts.norm_eps, positions=2)
    model = MODELS.load(facts.architecture)(facts, kit)
    model.embed.weight = torch.zeros(1, dtype=dtype).expand(model.embed.size)
    for slot in kit.slots.values():
        slot.target()
        slot.filled()
    return model


class _Hollow:
    """A scheme as ``Plain`` is on a GPU."""

    def linear(self, spec: LinearSpec, device: torch.device, dtype: torch.dtype) -> "_HollowLinear":
        return _HollowLinear(spec, device, dtype)


class _HollowLinear(JoinedLinear):
    """One number in the shape of a matrix."""

    def __init__(self, spec: LinearSpec, device: torch.device, dtype: torch.dtype):
        super().__init__(spec, device, dtype)
        self._plain = dtype == torch.float32
        if self._plain:
            self.takes = frozenset({"add"} if spec.adds and not spec.bias else ())
        self.weight = torch.zeros(1, dtype=dtype).expand(spec.out, spec.inner)

    def join(self, norm: Norm) -> None:
        self._eps = norm.eps

    def adopt(self, weight: Tensor) -> None:
        """The number is as good as that one."""

    def apply(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        if self._plain:
            assert self.weight is not None
            return product(x, self.weight, self.bias, add)
        return super().apply(x, add)
