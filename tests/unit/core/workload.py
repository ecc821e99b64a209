"""Random workloads for a core on a FakeWorker, and a driver that checks its books after every step."""

import random
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from octavo.config.engine import Speculation
from octavo.core.engine.core import EngineCore
from octavo.core.grammar.base import Compiler, Grammar, allow
from octavo.core.scheduler.burst import Pace
from octavo.errors import BadRequest
from octavo.testing.cores import Drawn, Told, fake_config, hear
from octavo.testing.fakes import FakeWorker, expected
from octavo.wire.arrays import pack_tokens
from octavo.wire.plan import REPEAT
from octavo.wire.reply import AbortReason, FinishReason
from octavo.wire.request import EngineRequest, GrammarRef, Sampling
from octavo.wire.stats import StepStats

VOCAB = 17
LONGEST = 64


@dataclass(frozen=True)
class Ask:
    """One request of a workload. ``at``: the poll before which it arrives; ``gone``: the poll before which it is
    aborted, if it is."""

    prompt: list[int]
    out: int
    seed: int
    at: int
    priority: int = 0
    stops: tuple[int, ...] = ()
    min_out: int = 0
    every: int = 1
    gone: int | None = None
    salt: bytes = b""
    logprobs: bool = False
    prompt_logprobs: bool = False
    grammar: bool = False

    @property
    def limit(self) -> int:
        return len(self.prompt) + self.out

    def wire(self, handle: int) -> EngineRequest:
        return EngineRequest(
            handle,
            pack_tokens(self.prompt),
            Sampling(
                seed=self.seed,
                logprobs=1 if self.logprobs else None,
                prompt_logprobs=0 if self.prompt_logprobs else None,
            ),
            self.limit,
            min_length=len(self.prompt) + self.min_out,
            stops=self.stops,
            eos=min(1, len(self.stops)),
            every=self.every,
            priority=self.priority,
            arrival=float(self.at),
            salt=self.salt,
            grammar=GrammarRef("regex", "odd") if self.grammar else None,
        )

    def right(self, windows) -> list[int]:
        allowed = odd_bits if self.grammar else None
        return expected(
            self.prompt, self.seed, self.limit, VOCAB, windows, self.stops, len(self.prompt) + self.min_out, allowed
        )


def odd_bits(said: list[int]):
    """The mask of the test grammar: odd and even tokens in turn."""
    bits = np.zeros(1, np.int32)
    allow(bits, range(1 - len(said) % 2, VOCAB, 2))
    return bits


class OddGrammar(Grammar):
    def __init__(self) -> None:
        self.said: list[int] = []

    def accept(self, token: int) -> bool:
        fine = token % 2 == 1 - len(self.said) % 2
        self.said.append(token)
        return fine

    def fill(self, bits) -> None:
        bits[:] = odd_bits(self.said)

    def rollback(self, count: int) -> None:
        del self.said[len(self.said) - count :]

    def forced(self, limit: int) -> list[int]:
        return []


class OddCompiler(Compiler):
    def compile(self, ref: GrammarRef) -> OddGrammar:
        if ref.text != "odd":
            raise BadRequest("no such grammar", "response_format")
        return OddGrammar()


@dataclass(frozen=True)
class House:
    """A configuration of core and fake device."""

    windows: tuple[int | None, ...]
    depth: int
    rows: int
    budget: int
    threshold: int
    policy: str
    pages: int
    page: int
    burst: int = 1
    draw: int = 0
    caching: bool = True
    drafts: int = 0

    def core(self, pace: Pace | None = None) -> EngineCore:
        slots = 1  # one layer a group
        config = fake_config(
            {"vocab": VOCAB, "windows": self.windows, "drafts": self.drafts},
            max_num_seqs=self.rows,
            max_num_batched_tokens=self.budget,
            long_prefill_token_threshold=self.threshold,
            policy=self.policy,
            depth=self.depth,
            burst_ms=float(self.burst > 1),
            max_model_len=LONGEST,
            page=self.page,
            prefix_caching=self.caching,
            speculation=Speculation(method="ngram", tokens=self.drafts, shortest=1, longest=3) if self.drafts else None,
        )
        least = sum(
            -(-LONGEST // self.page)
            if window is None
            else min(-(-LONGEST // self.page), -(-(window - 1 + self._step) // self.page) + 1)
            for window in self.windows
        )
        memory = (least + 1 + self.pages) * slots * self.page * 4
        config = fake_config_with_memory(config, memory)
        return EngineCore(config, compiler=OddCompiler(), pace=pace or Drawn(self.burst, self.draw))

    @property
    def _step(self) -> int:
        most = min(self.budget, self.threshold) if self.threshold else self.budget
        most = max(most, 1 + self.drafts if self.drafts else 0)
        return most * (self.depth - 1) + max(most, REPEAT if self.burst > 1 else 0)


def fake_config_with_memory(config, memory: int):
    from dataclasses import replace

    return replace(config, cache=replace(config.cache, memory=memory))


@dataclass
class Run:
    """What a workload came to."""

    told: dict[int, Told]
    core: EngineCore
    polls: int
    worker: FakeWorker
    most_cached: int = 0
    preemptions: int = 0
    generated: int = 0
    reports: list[StepStats] = field(default_factory=list)


def drive(house: House, asks: list[Ask], prepare=None, polls: int = 40_000) -> Run:
    """Run a workload to its end, checking rows and pages after every step. ``prepare(worker, core)`` may set faults."""
    core = house.core()
    core.start()
    worker = core.worker
    if prepare is not None:
        prepare(worker, core)
    run = Run({}, core, 0, worker)
    pending = sorted(range(len(asks)), key=lambda handle: asks[handle].at)
    schedule = core.scheduler.schedule
    launched = 0

    def counted():
        nonlocal launched
        before = core.scheduler._planner.builder.step
        plan = schedule()
        launched += plan is not None
        assert plan is not None or core.scheduler._planner.builder.step == before
        return plan

    core.scheduler.schedule = counted
    while True:
        now = run.polls
        arrived = [handle for handle in pending if asks[handle].at <= now]
        pending = [handle for handle in pending if asks[handle].at > now]
        if arrived:
            core.add([asks[handle].wire(handle) for handle in arrived])
        gone = [handle for handle, ask in enumerate(asks) if ask.gone == now]
        if gone:
            core.abort(gone, AbortReason.CLIENT)
        inflight, plans = core.outstanding, launched
        replies = core.poll(0.01 if any(ask.grammar for ask in asks) else 0.0)
        if launched == plans and inflight and not replies:
            assert core.outstanding < inflight, "nothing was launched and nothing retired"
        assert launched == worker.plans, "a plan did not reach the worker"
        assert not worker.wrong, worker.wrong
        hear(replies, run.told)
        for reply in replies:
            if reply.stats is not None:
                run.preemptions += reply.stats.preemptions
                run.generated += reply.stats.generation_tokens
                run.reports.append(reply.stats)
        core.scheduler.book.check()
        run.polls += 1
        if not pending and not core.scheduler.unfinished and not core.outstanding and not core.runnable:
            break
        assert run.polls < polls, "an endless call"
    pool = core.scheduler.book.kv.pool
    assert pool.free == pool.pages - 1, "pages are lost"
    assert core.scheduler.book.rows.available == house.rows + min(house.rows, 64), "rows are lost"
    assert not worker.rows, "the device was not told of freed rows"
    core.close()
    return run


def check_answers(house: House, asks: list[Ask], run: Run) -> None:
    """Everybody got exactly the tokens that they get alone; who was aborted got the beginning of them."""
    for handle, ask in enumerate(asks):
        told, right = run.told[handle], ask.right(house.windows)
        assert (told.first is not None) == bool(told.tokens)
        if told.finish is FinishReason.ABORT:
            assert ask.gone is not None
            assert told.tokens == right[: len(told.tokens)]
            continue
        assert told.admitted
        assert told.tokens == right, f"request {handle} of {asks}"
        stopped = bool(right) and right[-1] in ask.stops and len(right) >= ask.min_out
        assert told.finish is (FinishReason.STOP if stopped else FinishReason.LENGTH)
        assert told.stop == (right[-1] if stopped and right[-1] != ask.stops[0] else None)
        if ask.logprobs:
            ids = [row[0] for piece in told.logprobs for row in piece.ids.tolist()]
            assert ids == right
        if ask.prompt_logprobs:
            ids = [row[0] for piece in told.prompt_logprobs for row in piece.ids.tolist()]
            assert ids == ask.prompt[1:]
            assert told.cached == 0


@st.composite
def houses(draw, **fixed) -> House:
    budget = draw(st.integers(1, 40))
    values = {
        "windows": draw(st.sampled_from([(None,), (None, 6), (9, None, 3), (5,)])),
        "depth": draw(st.integers(1, 3)),
        "rows": draw(st.integers(1, 6)),
        "budget": budget,
        "threshold": draw(st.sampled_from([0, 0, 3, 10])),
        "policy": draw(st.sampled_from(["fcfs", "priority"])),
        "pages": draw(st.integers(0, 12)),
        "page": draw(st.sampled_from([4, 8])),
        "burst": draw(st.sampled_from([1, 2, 4, REPEAT])),
        "draw": draw(st.integers(0, 2**20)),
        "caching": draw(st.booleans()),
    }
    fixed = {name: draw(value) if isinstance(value, st.SearchStrategy) else value for name, value in fixed.items()}
    return House(**(values | fixed))


@st.composite
def workloads(draw, grammar: bool = False, most: int = 12) -> list[Ask]:
    """Requests that share prefixes, arrive at different times, and sometimes go away."""
    stems = draw(st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=0, max_size=24), min_size=1, max_size=3))
    asks = []
    for _ in range(draw(st.integers(1, most))):
        prompt = draw(st.sampled_from(stems)) + draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=16))
        at = draw(st.integers(0, 20))
        kind = draw(st.integers(0, 9))
        scoring = kind == 0
        out = 0 if scoring else draw(st.integers(1, min(24, LONGEST - len(prompt))))
        asks.append(
            Ask(
                prompt,
                out,
                draw(st.integers(0, 5)),
                at,
                draw(st.integers(0, 2)),
                tuple(draw(st.lists(st.integers(0, VOCAB - 1), max_size=10 if kind == 1 else 1, unique=True))),
                draw(st.integers(0, out)),
                draw(st.sampled_from([1, 1, 0, 3])),
                at + draw(st.integers(0, 15)) if draw(st.integers(0, 5)) == 0 else None,
                draw(st.sampled_from([b"", b"", b"tenant"])),
                logprobs=kind == 2,
                prompt_logprobs=kind == 3 or scoring,
                grammar=grammar and draw(st.booleans()),
            )
        )
    return asks


def crowd(seed: int) -> list[Ask]:
    """A bigger workload than hypothesis likes to draw: many requests, few prompts, arrivals over a long time."""
    rng = random.Random(seed)
    stems = [[rng.randrange(VOCAB) for _ in range(rng.choice([0, 8, 12, 24, 32]))] for _ in range(rng.randint(1, 4))]
    asks = []
    for _ in range(rng.randint(10, 30)):
        prompt = rng.choice(stems) + [rng.randrange(3) for _ in range(rng.randint(1, 6))]
        at = rng.randint(0, 120)
        out = rng.randint(1, min(24, LONGEST - len(prompt)))
        asks.append(
            Ask(
                prompt,
                out,
                rng.randrange(3),
                at,
                rng.randrange(3),
                (rng.randrange(VOCAB),) if rng.random() < 0.3 else (),
                every=rng.choice([0, 1, 1, 3]),
                gone=at + rng.randint(0, 20) if rng.random() < 0.15 else None,
                salt=rng.choice([b"", b"", b"", b"tenant"]),
                logprobs=rng.random() < 0.1,
                prompt_logprobs=rng.random() < 0.1,
            )
        )
    return asks
