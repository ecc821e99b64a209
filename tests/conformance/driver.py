"""One sequence through a model: real layers, the CPU's attention over real pages, logits of every token."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from octavo.config.checkpoint import locate
from octavo.config.engine import ModelSection
from octavo.device.attention.cpu import CPUAttention
from octavo.device.batch.batch import BatchShape, InputBatch
from octavo.device.layers.step import Bound, Step, running
from octavo.device.models.base import CausalLM
from octavo.device.weights.loader import load
from octavo.wire.arrays import ints
from octavo.wire.plan import Kind

PAGE = 4


def model_of(path: str | Path | None, dtype: torch.dtype = torch.float32, **section) -> CausalLM:
    """Locate and load; the embedded model without a path."""
    found = locate(None if path is None else str(path))
    given = {"path": found.path, "facts": found.facts, "dtype": str(dtype).removeprefix("torch.")} | section
    return load(ModelSection(**given), torch.device("cpu"), dtype)


class Sequence:
    """A sequence that grows: ``feed`` computes its next tokens, as a step with one row would."""

    def __init__(self, model: CausalLM, longest: int = 256):
        self.model, self.length = model, 0
        self.backend = CPUAttention()
        pages = longest // PAGE + 1
        kind = model.embed.dtype
        self.specs = list(dict.fromkeys(layer.spec(kind.itemsize) for layer in model.attentions))
        self.bound = {}
        for layer in model.attentions:
            spec = layer.spec(kind.itemsize)
            raw = torch.zeros(pages * PAGE * spec.token_bytes, dtype=torch.uint8)
            cache = self.backend.view(spec, raw, pages, PAGE, kind)
            self.bound[layer.name] = Bound(self.backend, cache, self.specs.index(spec))
        # Pages lie backwards, so that nothing works by their order.
        self.table = torch.arange(pages - 1, 0, -1, dtype=torch.int32)[None]

    @torch.inference_mode()
    def feed(self, ids: list[int]) -> Tensor:
        """Logits [len(ids), V] of the next tokens."""
        take, start = len(ids), self.length
        self.length += take
        positions = torch.arange(start, self.length)
        slot = self.table[0].long()[positions // PAGE] * PAGE + positions % PAGE
        batch = InputBatch(
            shape=BatchShape(Kind.DECODE if take == 1 else Kind.MIXED, take, 1, take),
            decodes=int(take == 1),
            rows=torch.zeros(1, dtype=torch.int64),
            ids=torch.tensor(ids),
            positions=positions[None],
            query_start=torch.tensor([0, take]),
            seq_lens=torch.tensor([self.length]),
            logits_at=torch.tensor([take - 1]),
            logit_rows=torch.zeros(1, dtype=torch.int64),
            slots=[slot for _ in self.specs],
            tables=[self.table for _ in self.specs],
            page=PAGE,
            host_rows=ints([0]),
            host_starts=ints([0]),
            host_takes=ints([take]),
            host_lens=ints([self.length]),
        )
        metas = [self.backend.plan(batch, spec, group) for group, spec in enumerate(self.specs)]
        with running(Step(batch, self.bound, metas)):
            hidden = self.model.forward(batch.ids)
        return self.model.logits(hidden.last)

    def chunked(self, ids: list[int], size: int) -> Tensor:
        """Logits of all ``ids``, computed ``size`` at a time."""
        return torch.cat([self.feed(ids[at : at + size]) for at in range(0, len(ids), size)])


def random_ids(count: int, vocab: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, vocab, count)]
