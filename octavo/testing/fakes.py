"""FakeWorker: a WorkerPort without a model. It says tokens that depend on everything a real device would look at, and
checks every plan.

Its "model" keeps one number a position and group in real pages: a chain over the tokens before. What it says next is a
function of (seed, position, the numbers that the row's page tables lead to). So a page that was shared, reused or
cached wrongly, a token computed twice or a stale last token changes what it says; ``expected`` says what is right.
It is one module, if a long one, because the checks of plans and the answers read and change the same rows.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.config.engine import EngineConfig
from octavo.errors import CheckpointError
from octavo.wire.arrays import Ints, ints, unpack_tokens
from octavo.wire.hello import Hello, Limits
from octavo.wire.kv import KVLayout, KVSpec
from octavo.wire.plan import GrammarMasks, Kind, NewRow, StepPlan
from octavo.wire.result import LogprobArrays, PromptLogprobs, StepExtras, StepResult

MASK = (1 << 64) - 1


def mix(*values: int) -> int:
    """A 64-bit hash of integers (SplitMix64's finisher over a running sum)."""
    state = 0x9E3779B97F4A7C15
    for value in values:
        state = (state ^ (value & MASK)) * 0xBF58476D1CE4E5B9 & MASK
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & MASK
        state ^= state >> 31
    return state


def pick(seed: int, position: int, digest: int, vocab: int, stops: Sequence[int], masked: bool, bits=None) -> int:
    """The token at ``position``: the first allowed id from a hashed start on."""
    token = mix(seed, position, digest) % vocab
    for _ in range(vocab):
        banned = (masked and token in stops) or (
            bits is not None and not int(bits[token >> 5]) & 0xFFFFFFFF & (1 << (token & 31))
        )
        if not banned:
            break
        token = (token + 1) % vocab
    return token


def expected(
    prompt: Sequence[int],
    seed: int,
    limit: int,
    vocab: int = 97,
    windows: Sequence[int | None] = (None,),
    stops: Sequence[int] = (),
    min_length: int = 0,
    allowed: Callable[[list[int]], Any] | None = None,
) -> list[int]:
    """What ``FakeWorker`` says to a request that is alone, computed without rows, pages or steps.

    ``windows``: of the KV groups in order. ``allowed(output so far)``: mask bits of a grammar.
    """
    values: list[int] = []
    tokens = list(prompt)
    while len(tokens) < limit:
        for position in range(len(values), len(tokens)):
            values.append(mix(values[-1] if values else 0, tokens[position], position))
        sums = [sum(values[-window:] if window else values) & MASK for window in windows]
        bits = allowed(tokens[len(prompt) :]) if allowed else None
        token = pick(seed, len(tokens), mix(*sums), vocab, stops, len(tokens) < min_length, bits)
        tokens.append(token)
        if token in stops and len(tokens) >= min_length:
            break
    return tokens[len(prompt) :]


def cut(plan: StepPlan) -> tuple[list[list[int]], list[list[int]]]:
    """Of each row of a plan the known tokens and the drafts."""

    def split(tokens: Ints, counts: Ints) -> list[list[int]]:
        return [part.tolist() for part in np.split(tokens, np.cumsum(counts)[:-1])] if len(counts) else []

    return split(plan.chunk, plan.known), split(plan.draft_tokens, plan.drafts)


@dataclass
class Row:
    """What a device keeps for a row."""

    new: NewRow
    tables: list[list[int]]
    computed: int = -1  # set by the first plan that runs the row
    last: int = -1
    length: int = 0
    alive: bool = True
    broken: bool = False
    value: int = 0


@dataclass
class FakeTicket:
    """Ready at ``when`` on the monotonic clock, whether anybody waits or not."""

    step: int
    result: StepResult
    bulk: StepExtras
    when: float = 0.0

    def ready(self) -> bool:
        return time.monotonic() >= self.when

    def wait(self, timeout: float | None = None) -> StepResult:
        left = self.when - time.monotonic()
        if left > 0:
            if timeout is not None and left > timeout:
                time.sleep(timeout)
                raise TimeoutError(f"step {self.step} is not done")
            time.sleep(left)
        return self.result

    def extras(self) -> StepExtras:
        return self.bulk


@dataclass
class FakeOptions:
    """``config.model.facts.raw["fake"]`` may set them by name, for workers built in another process.

    ``windows``: one KV group each (None looks at everything). ``latency``: seconds a step takes on the device, one
    after another. ``memory``: bytes for pages; a token takes 4 a slot. ``strict``: model pages and check
    plans; else tokens are a hash of (seed, position), at the speed of numpy. ``brake``: a file; as long as it is there,
    ``hello`` and each launch of a step take so many seconds more as it says (inf: they hang). ``boot_error``: what
    ``hello`` complains of. ``drafts``: most drafts of a row that it verifies, if strict.
    """

    vocab: int = 97
    windows: tuple[int | None, ...] = (None,)
    layers: int = 1
    latency: float = 0.0
    memory: int = 1 << 20
    page_sizes: tuple[int, ...] = (4, 8, 16)
    strict: bool = True
    brake: str = ""
    boot_error: str = ""
    adapters: int = 0
    drafts: int = 0


class FakeWorker:
    """``on_forward(plan)`` may raise: a step that cannot be launched. ``fault(plan)`` gives a text for a step that
    fails on the device, ``row_faults(plan)`` texts for single rows. ``plans`` counts what arrived,
    ``wrong`` says what was wrong with it."""

    def __init__(self, config: EngineConfig, options: FakeOptions | None = None):
        self.config = config
        self.options = options or FakeOptions(**config.model.facts.raw.get("fake", {}))
        self.on_forward: Callable[[StepPlan], None] | None = None
        self.fault: Callable[[StepPlan], str | None] | None = None
        self.row_faults: Callable[[StepPlan], dict[int, str]] | None = None
        self.plans = 0
        self.wrong: list[str] = []
        self.last_plan: StepPlan | None = None
        self.rows: dict[int, Row] = {}
        self.closed = False
        self._clock = 0.0
        self._step = 0
        self._values: np.ndarray = np.zeros((0, 0), np.uint64)
        self._pending: tuple[StepPlan, str | None, list[PromptLogprobs]] | None = None
        self._seeds = np.zeros(config.schedule.rows, np.uint64)

    # WorkerPort.

    def hello(self) -> Hello:
        o = self.options
        self._brake()
        if o.boot_error:
            raise CheckpointError(o.boot_error)
        layers = tuple(
            (f"layer.{index}.{group}", KVSpec(1, 1, 1, 2, window))
            for index in range(o.layers)
            for group, window in enumerate(o.windows)
        )
        return Hello(
            "cpu",
            "a fake device",
            "float32",
            o.vocab,
            layers,
            tuple(o.page_sizes),
            o.memory,
            1 << 20,
            1 << 20,
            Limits(adapters=o.adapters, drafts=o.drafts if o.strict else 0),
            {"attention": "fake"},
        )

    def build(self, layout: KVLayout, max_model_len: int) -> None:
        self.layout = layout
        self.windows = [group.spec.window for group in layout.groups]
        self.max_model_len = max_model_len
        if self.options.strict:
            self._values = np.zeros((len(layout.groups), layout.pages * layout.page), np.uint64)

    def forward(self, plan: StepPlan) -> None:
        assert self._pending is None, "forward before the sample of the step before"
        assert plan.step == self._step, f"plan {plan.step} came where {self._step} was due"
        self._step += plan.repeat
        self.plans += 1
        self.last_plan = plan
        self._brake()
        if not self.options.strict:
            for new in plan.new:
                self._seeds[new.row] = new.sampling.seed & MASK
            self._pending = (plan, None, [])
            return
        try:
            self._forward(plan)
        except AssertionError as error:
            self.wrong.append(str(error) or "an assertion about a plan failed")
            raise

    def _brake(self) -> None:
        begin = time.monotonic()
        while self.options.brake:
            try:
                with open(self.options.brake) as file:
                    seconds = float(file.read() or "inf")  # empty: it is being written
            except FileNotFoundError:
                return
            if time.monotonic() - begin >= seconds:
                return
            time.sleep(0.01)

    def _forward(self, plan: StepPlan) -> None:
        self._check_columns(plan)
        for row in plan.freed.tolist():
            self.rows.pop(row, None)
        fault = self.fault(plan) if self.fault else None
        try:
            if self.on_forward:
                self.on_forward(plan)
        except BaseException:
            self._break(plan)
            raise
        self._pending = (plan, fault, [])
        if fault is not None:
            self._break(plan)
            return
        self._apply(plan)
        self._pending = (plan, None, self._compute(plan))

    def sample(self, masks: GrammarMasks | None) -> Sequence[FakeTicket]:
        assert self._pending is not None, "sample without forward"
        (plan, fault, prompt), self._pending = self._pending, None
        assert (masks is not None) == (len(plan.masked) > 0)
        tickets = []
        for part in range(plan.repeat):
            if not self.options.strict:
                result, extras = self._quick(plan, part), StepExtras()
            elif fault is not None:
                result = StepResult(plan.step + part, np.empty(0, np.int64), ints([]), fault)
                extras = StepExtras()
            else:
                if part:
                    prompt = self._compute(plan, part)
                result, extras = self._say(plan, part, prompt, masks)
            self._clock = max(self._clock, time.monotonic()) + self.options.latency
            tickets.append(FakeTicket(plan.step + part, result, extras, self._clock if self.options.latency else 0.0))
        return tickets

    def idle(self) -> float | None:
        return None

    def call(self, command: str, *args: Any) -> Any:
        known: dict[str, Callable[..., Any]] = {
            "echo": lambda *a: list(a),
            "rows": lambda: len(self.rows),
            "plans": lambda: self.plans,
        }
        if command not in known:
            raise ValueError(f"unknown command {command!r}; known to the worker: {', '.join(known)}")
        return known[command](*args)

    def close(self) -> None:
        self.closed = True

    # Plans.

    def _check_columns(self, plan: StepPlan) -> None:
        count = len(plan.rows)
        for name in ("epochs", "computed", "takes", "known", "samples", "drafts"):
            assert len(getattr(plan, name)) == count, f"column {name} has another length"
        assert len(set(plan.rows.tolist())) == count, "a row is twice in a plan"
        assert int(plan.known.sum()) == len(plan.chunk)
        assert plan.tokens <= self.config.schedule.max_num_batched_tokens, "over the budget"
        assert count <= self.config.schedule.max_num_seqs, "over the rows"
        pieces = plan.known > 0
        assert not pieces.any() or pieces[np.argmax(pieces) :].all(), "decodes come first"
        kind = Kind.NONE if not count else Kind.MIXED if pieces.any() else Kind.DECODE
        assert plan.kind == kind
        assert plan.repeat == 1 or kind == Kind.DECODE
        assert (plan.known[pieces] == plan.takes[pieces]).all()
        assert (plan.takes[~pieces] == 1 + plan.drafts[~pieces]).all()
        assert plan.samples[plan.drafts > 0].all()
        assert 0 <= plan.drafts.min(initial=0) <= plan.drafts.max(initial=0) <= self.options.drafts
        assert len(plan.draft_tokens) == plan.drafts.sum()
        assert (np.diff((plan.drafts > 0) + 2 * pieces) >= 0).all(), "rows with drafts stand between the others"
        assert plan.repeat == 1 or not len(plan.draft_tokens)

    def _break(self, plan: StepPlan) -> None:
        for new in plan.new:
            self.rows[new.row] = Row(new, [[] for _ in self.layout.groups], broken=True)
        for row in plan.rows.tolist():
            if row in self.rows:
                self.rows[row].broken = True

    def _apply(self, plan: StepPlan) -> None:
        for new in plan.new:
            assert new.row not in self.rows, f"row {new.row} is lent twice"
            assert new.row < self.config.schedule.rows
            assert new.limit <= self.max_model_len
            self.rows[new.row] = Row(new, [[] for _ in self.layout.groups], length=new.length)
            if new.sampling.needs_history:
                assert len(new.tokens) == 4 * new.length
        at = 0
        diff = plan.pages
        for group, row, start, count in zip(
            diff.groups.tolist(), diff.rows.tolist(), diff.starts.tolist(), diff.counts.tolist(), strict=True
        ):
            table = self.rows[row].tables[group]
            # The tables of a row in a step that failed are not those that the core knows.
            assert len(table) == start or self.rows[row].broken, "a page table may only grow at its end"
            pages = diff.pages[at : at + count].tolist()
            assert all(0 <= page < self.layout.pages for page in pages)
            table.extend(pages)
            at += count
        assert at == len(diff.pages)

    def _slot(self, row: Row, group: int, position: int) -> int:
        page = self.layout.page
        table = row.tables[group]
        assert position // page < len(table), f"position {position} of row {row.new.row} has no page"
        owner = table[position // page]
        assert owner > 0, f"position {position} of row {row.new.row} is on the null page"
        return owner * page + position % page

    def _visible(self, group: int, position: int) -> int:
        window = self.windows[group]
        return 0 if window is None else max(0, position - window + 1)

    def _write(self, row: Row, position: int, value: int) -> None:
        for group in range(len(self.layout.groups)):
            slot = self._slot(row, group, position)
            page = slot // self.layout.page
            for other in self.rows.values():
                if other is row or other.broken or other.computed < 0:
                    continue
                seen = other.tables[group][self._visible(group, other.computed) // self.layout.page :]
                assert page not in seen, f"rows {row.new.row} and {other.new.row} both use page {page} as their own"
            self._values[group, slot] = value

    def _compute(self, plan: StepPlan, part: int = 0) -> list[PromptLogprobs]:
        prompt = []
        for index, (number, chunk, drafts) in enumerate(zip(plan.rows.tolist(), *cut(plan), strict=True)):
            row = self.rows.get(number)
            assert row is not None, f"row {number} is planned but not lent"
            if row.broken or not row.alive:
                continue
            assert row.new.epoch == plan.epochs[index]
            start = int(plan.computed[index]) + part
            if row.computed < 0:
                row.computed = start
                assert start % self.layout.page == 0, "a prefix hit ends inside a page"
            assert row.computed == start, f"row {number} is at {row.computed}, the plan says {start}"
            if not chunk:
                assert row.last >= 0, "a decode without a last token"
                assert row.length == start + 1
                chunk = [row.last, *drafts]
            previous = int(self._values[0, self._slot(row, 0, start - 1)]) if start else 0
            for offset, token in enumerate(chunk):
                previous = mix(previous, token, start + offset)
                self._write(row, start + offset, previous)
                row.computed += 1
            assert row.computed <= row.length + len(drafts)
            assert row.computed < row.new.limit or not drafts, "a draft where the request has ended"
            if row.new.sampling.prompt_logprobs is not None:
                piece = self._score(row, start)
                if piece is not None:
                    prompt.append(piece)
        return prompt

    def _score(self, row: Row, start: int) -> PromptLogprobs | None:
        stop = min(row.computed, row.new.prompt - 1)
        if stop <= start:
            return None
        tokens = unpack_tokens(row.new.tokens)[start + 1 : stop + 1]
        values = [-float(self._values[0, self._slot(row, 0, p)] % np.uint64(1000)) for p in range(start, stop)]
        arrays = LogprobArrays(tokens[:, None].copy(), np.asarray(values, np.float32)[:, None], ints([1] * len(tokens)))
        return PromptLogprobs(row.new.row, row.new.epoch, start + 1, arrays)

    def _say(self, plan: StepPlan, part: int, prompt, masks: GrammarMasks | None) -> tuple[StepResult, StepExtras]:
        count = len(plan.rows)
        tokens = np.full((count, 1 + plan.drafts.max(initial=0)), -1, np.int64)
        counts = np.zeros(count, np.int32)
        faults = self.row_faults(plan) if self.row_faults else {}
        lines: list[int] = []
        told: list[list[int]] = []
        bits = self._bits(plan, masks)
        for index, (number, drafts) in enumerate(zip(plan.rows.tolist(), cut(plan)[1], strict=True)):
            row = self.rows[number]
            if index in faults:
                row.broken = True
            if row.broken or not row.alive or not plan.samples[index]:
                continue
            assert row.computed == row.length + len(drafts), "sampled before its end"
            row.computed = row.length
            for place, mask in enumerate(bits[index]):
                token = self._next(row, mask)
                tokens[index, place] = token
                row.last = token
                row.length += 1
                counts[index] += 1
                stopped = token in row.new.stops and row.length >= row.new.min_length
                row.alive = not stopped and row.length < row.new.limit
                if row.new.sampling.logprobs is not None:
                    lines.append(index)
                    told.append([token, *range(row.new.sampling.logprobs)])
                if not row.alive or place == len(drafts) or token != drafts[place]:
                    break
                row.computed += 1
        extras = StepExtras(prompt=prompt)
        if lines:
            width = max(map(len, told))
            ids = np.full((len(told), width), -1, np.int32)
            for line, some in enumerate(told):
                ids[line, : len(some)] = some
            extras.rows = ints(lines)
            extras.logprobs = LogprobArrays(ids, -ids.astype(np.float32), ints([1] * len(told)))
        return StepResult(plan.step + part, tokens, counts, None, faults), extras

    @staticmethod
    def _bits(plan: StepPlan, masks: GrammarMasks | None) -> list[list[Ints | None]]:
        """A mask or None for every logit row of every row."""
        found: list[list[Ints | None]] = [[None] * (1 + count) for count in plan.drafts.tolist()]
        if masks is not None:
            lines = iter(masks.bits)
            for index in masks.rows.tolist():
                found[index] = [next(lines) for _ in found[index]]
            assert next(lines, None) is None, "masks of no row"
        return found

    def _next(self, row: Row, bits: Ints | None) -> int:
        sums = []
        for group in range(len(self.layout.groups)):
            span = range(self._visible(group, row.computed - 1), row.computed)
            slots = [self._slot(row, group, position) for position in span]
            sums.append(int(self._values[group, slots].sum(dtype=np.uint64)))
        new = row.new
        masked = row.length < new.min_length
        return pick(new.sampling.seed, row.length, mix(*sums), self.options.vocab, new.stops, masked, bits)

    def _quick(self, plan: StepPlan, part: int) -> StepResult:
        position = (plan.computed + plan.takes + part).astype(np.uint64)
        hashed = (self._seeds[plan.rows] ^ (position * np.uint64(0x9E3779B97F4A7C15))) * np.uint64(0xBF58476D1CE4E5B9)
        tokens = ((hashed >> np.uint64(33)) % np.uint64(self.options.vocab)).astype(np.int64)
        return StepResult(plan.step + part, tokens[:, None], plan.samples.astype(np.int32))
