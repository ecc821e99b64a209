"""A tiny decoder in plain torch that speaks through the ambient step, and a driver that plans as a scheduler would."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from octavo.common.math import cdiv
from octavo.device.attention.base import GraphUse, KVCache, LayerAttention
from octavo.device.attention.cpu import CPUAttention
from octavo.device.kernels.kvstore import store
from octavo.device.kernels.paged_decode import attend_plainly
from octavo.device.kernels.rope import rope_, turns
from octavo.device.layers.step import Bound, current
from octavo.device.platforms.cpu import CPU
from octavo.device.runner.later import AsyncRunner
from octavo.device.runner.runner import ModelRunner
from octavo.wire.arrays import ints, pack_tokens
from octavo.wire.kv import KVGroup
from octavo.wire.plan import GrammarMasks, Kind, NewRow, PageDiff, StepPlan
from octavo.wire.request import Sampling
from octavo.wire.result import StepResult

VOCAB = 97


class TinyModel(torch.nn.Module):
    """Two attention layers, the second with a window if asked, random weights, float32."""

    def __init__(self, hidden: int = 32, q_heads: int = 4, kv_heads: int = 2, dim: int = 8, window: int | None = None):
        super().__init__()
        make = torch.Generator().manual_seed(7)
        turn = torch.arange(512)[:, None] / 100.0 ** (torch.arange(dim // 2)[None] / (dim // 2))
        self.facts = SimpleNamespace(vocab=VOCAB, hidden=hidden)
        self.attentions = [
            LayerAttention(
                name=f"layers.{i}",
                q_heads=q_heads,
                kv_heads=kv_heads,
                head_dim=dim,
                v_dim=dim,
                scale=dim**-0.5,
                window=window if i else None,
                rope=(turn.cos(), turn.sin()),
            )
            for i in range(2)
        ]
        widths = sum(self.attentions[0].sizes)
        self.embed = torch.randn(VOCAB, hidden, generator=make)
        self.qkv = [torch.randn(hidden, widths, generator=make) / hidden**0.5 for _ in self.attentions]
        self.out = [torch.randn(q_heads * dim, hidden, generator=make) / hidden**0.5 for _ in self.attentions]
        self.head = torch.randn(hidden, VOCAB, generator=make)
        self.spoiled: int | None = None

    def forward(self, ids: Tensor, embeds: Tensor | None = None):
        x = self.embed[ids]
        if self.spoiled is not None:
            x = torch.where((ids == self.spoiled)[:, None], float("nan"), x)
        for layer, qkv, out in zip(self.attentions, self.qkv, self.out, strict=True):
            x = x + current().attend(layer, x @ qkv) @ out
        return SimpleNamespace(last=x, taps={})

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.head


@dataclass(eq=False)
class Request:
    """A request as the driver sees it. ``said`` grows as results come."""

    prompt: list[int]
    limit: int
    sampling: Sampling
    stops: tuple[int, ...] = ()
    min_length: int = 0
    said: list[int] = field(default_factory=list)
    fault: str | None = None
    row: int = -1
    epoch: int = 0
    computed: int = 0
    planned: int = 0
    pages: int = 0
    known: int = 0
    done: bool = False
    prompt_logprobs: list = field(default_factory=list)
    logprobs: list = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.said


Drafts = dict[Request, list[int]]


class Driver:
    """Lends rows and pages and makes plans. Every request gets pages of its own in a shuffled order."""

    def __init__(
        self, model: TinyModel, rows: int = 8, length: int = 200, page: int = 4, seed: int = 0, backend=None, **options
    ):
        spec = [layer.spec(4) for layer in model.attentions]
        alike = spec[0] == spec[1]
        layers = [layer.name for layer in model.attentions]
        self.groups = (
            [KVGroup(spec[0], tuple(layers))]
            if alike
            else [KVGroup(s, (name,)) for s, name in zip(spec, layers, strict=True)]
        )
        self.page, self.length = page, length
        pages = rows * (cdiv(length, page) + 1) * len(self.groups) + 1
        backend = backend or CPUAttention()
        raw = [torch.zeros(pages * page * spec[0].token_bytes, dtype=torch.uint8) for _ in range(2 if alike else 1)]
        bound = {}
        for number, group in enumerate(self.groups):
            for slot, name in enumerate(group.layers):
                bound[name] = Bound(backend, backend.view(group.spec, raw[slot], pages, page, torch.float32), number)
        self.runner = (AsyncRunner if "platform" in options else ModelRunner)(
            model,
            VOCAB,
            self.groups,
            bound,
            rows=rows,
            max_model_len=length,
            page=page,
            device=torch.device("cpu"),
            **options,
        )
        order = np.random.default_rng(seed).permutation(np.arange(1, pages)).tolist()
        self.free_pages, self.held = order, {}
        self.free_rows = list(range(rows))
        self.step = 0
        self.fresh: list[NewRow] = []

    def admit(self, request: Request) -> None:
        request.row = self.free_rows.pop()
        request.computed = request.planned = request.pages = 0
        request.known = len(request.tokens)
        self.held[request.row] = []
        self.fresh.append(
            NewRow(
                request.row,
                request.epoch,
                len(request.prompt),
                len(request.tokens),
                request.limit,
                request.min_length,
                request.stops,
                request.sampling,
                pack_tokens(request.tokens) if request.sampling.needs_history else b"",
            )
        )

    def release(self, request: Request) -> None:
        self.free_rows.insert(0, request.row)
        self.free_pages.extend(self.held.pop(request.row))
        request.row = -1

    def preempt(self, request: Request) -> None:
        self.release(request)
        request.epoch += 1

    def plan(self, takes: list[tuple[Request, int]], repeat: int = 1, drafts: Drafts | None = None) -> StepPlan:
        """A step in which each request computes so many tokens: of what is known, else its next one, and its drafts
        behind it."""
        drafts = drafts or {}
        takes = sorted(takes, key=lambda pair: (pair[0].planned < pair[0].known, pair[0] in drafts))
        takes = [(request, take + len(drafts.get(request, ()))) for request, take in takes]
        rows, known, chunk, samples, diff = [], [], [], [], PageDiff()
        columns = {name: [] for name in ("groups", "rows", "starts", "counts", "pages")}
        for request, take in takes:
            given = max(0, min(take, request.known - request.planned))
            known.append(given)
            chunk += request.tokens[request.planned : request.planned + given]
            end = request.planned + take
            samples.append(end >= len(request.tokens) and end < request.limit)
            need = cdiv(end + repeat - 1, self.page) - request.pages
            for group in range(len(self.groups)) if need > 0 else []:
                got = [self.free_pages.pop() for _ in range(need)]
                self.held[request.row] += got
                for name, value in zip(columns, (group, request.row, request.pages, need), strict=False):
                    columns[name].append(value)
                columns["pages"] += got
            request.pages += max(need, 0)
            rows.append(request)
        diff = PageDiff(*(ints(column) for column in columns.values()))
        plan = StepPlan(
            step=self.step,
            kind=Kind.MIXED if any(known) else Kind.DECODE,
            rows=ints([r.row for r in rows]),
            epochs=ints([r.epoch for r in rows]),
            computed=ints([r.planned for r in rows]),
            takes=ints([take for _, take in takes]),
            known=ints(known),
            samples=np.array(samples, np.bool_),
            drafts=ints([len(drafts.get(r, ())) for r in rows]),
            draft_tokens=ints([token for r in rows for token in drafts.get(r, ())]),
            chunk=ints(chunk),
            new=self.fresh,
            pages=diff,
            repeat=repeat,
        )
        self.fresh = []
        self.step += repeat
        for request, take in takes:
            request.planned += take + repeat - 1
        self.order = rows
        return plan

    def launch(self, takes: list[tuple[Request, int]], repeat: int = 1, masks=None, drafts: Drafts | None = None):
        plan = self.plan(takes, repeat, drafts)
        self.runner.forward(plan)
        return plan, self.order, self.runner.sample(masks)

    def retire(self, plan: StepPlan, order: list[Request], tickets) -> list[StepResult]:
        results = []
        for ticket in tickets:
            result, extras = ticket.wait(), ticket.extras()
            results.append(result)
            for i, request in enumerate(order):
                if request.done or request.epoch != plan.epochs[i]:
                    continue
                request.computed += int(plan.takes[i])
                if plan.drafts[i]:
                    wrong = int(plan.takes[i] - result.counts[i])
                    request.computed -= wrong
                    request.planned -= wrong
                if i in result.row_faults:
                    request.fault, request.done = result.row_faults[i], True
                for token in result.tokens[i, : result.counts[i]].tolist():
                    assert not request.done, "something is said behind the end"
                    request.said.append(token)
                    ended = request.said[-1] in request.stops and len(request.tokens) >= request.min_length
                    request.done = ended or len(request.tokens) >= request.limit
            for nth, i in enumerate([] if extras.rows is None else extras.rows.tolist()):
                order[i].logprobs.append(
                    (extras.logprobs.ids[nth], extras.logprobs.values[nth], extras.logprobs.ranks[nth])
                )
            for piece in extras.prompt:
                next(r for r in order if r.row == piece.row).prompt_logprobs.append((piece.start, piece.arrays))
        return results

    def run(self, takes: list[tuple[Request, int]], repeat: int = 1, masks: GrammarMasks | None = None, drafts=None):
        return self.retire(*self.launch(takes, repeat, masks, drafts))


def alone(request: Request, chunk: int = 1000, model: TinyModel | None = None, **options) -> list[int]:
    """What a request says when nobody else is there."""
    driver = Driver(model or TinyModel(), **options)
    driver.admit(request)
    while not request.done:
        left = len(request.tokens) - request.planned
        driver.run([(request, min(chunk, max(left, 1)))])
    return request.said


class PagedAttention:
    """A backend that knows what the device knows and nothing of the host's columns: it may be captured."""

    name = "paged"
    graphs = GraphUse.ALWAYS

    def view(self, spec, raw, pages, page, kind) -> KVCache:
        return KVCache(raw.view(kind).view(pages, page, -1), page)

    def plan(self, batch, spec, group):
        row = torch.searchsorted(batch.query_start[1:], torch.arange(len(batch.ids)), right=True)
        return batch.positions[0], batch.slots[group], batch.tables[group][row].long()

    def attend(self, layer, qkv, cache, meta):
        positions, slots, pages = meta
        q_width, k_width, _ = layer.sizes
        heads = qkv[:, : q_width + k_width].unflatten(1, (-1, layer.head_dim))
        rope_(heads, *turns(*layer.rope, positions, qkv.dtype))
        store(cache.data, slots, qkv[:, q_width:])
        held = cache.data[pages].flatten(1, 2)  # [T, P * page, w]
        keys = held[..., :k_width].unflatten(-1, (layer.kv_heads, -1)).transpose(1, 2)
        values = held[..., k_width:].unflatten(-1, (layer.kv_heads, -1)).transpose(1, 2)
        at = torch.arange(held.shape[1])
        hidden = at > positions[:, None]
        if layer.window is not None:
            hidden |= at <= positions[:, None] - layer.window
        values = values.masked_fill(hidden[:, None, :, None], 0.0)
        mask = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))[:, None, None]
        q = heads[:, : layer.q_heads].unflatten(1, (layer.kv_heads, -1))
        return attend_plainly(q, keys, values, mask, layer.scale, None, None).flatten(1)


class Asynchronous(CPU):
    """A device whose steps come back through the ring and whose decode steps are graphs. A graph does again what was
    called; it counts how often it is made and used."""

    asynchronous = graphs = True

    def __init__(self) -> None:
        super().__init__()
        self.captured = self.replayed = 0

    def capture(self, run):
        self.captured += 1

        def replay():
            self.replayed += 1
            run()

        return replay
