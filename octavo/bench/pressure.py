"""`octavo bench pressure`: what a full KV cache costs. The same requests several times: with room for all that run,
then with shares of the pages that they held at most, so that some are preempted and computed again.

Of a model the seconds are taken. Without one the device is a fake and they are counted: a step costs what its tokens
and contexts cost, so that a figure is the scheduler's alone, and the same on every machine.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from octavo.bench import offline, report
from octavo.bench.host import config_of
from octavo.bench.workloads import Workload
from octavo.core.engine.core import EngineCore
from octavo.core.kv.pool import BlockPool
from octavo.core.scheduler.request import Request
from octavo.errors import ConfigError
from octavo.llm import LLM
from octavo.wire.plan import StepPlan

COLUMNS = (
    "model", "share", "pages", "seconds", "out_tok_s", "of_roomy_percent", "preemptions", "recomputed_percent",
    "peak_usage_percent", "sustained_usage_percent", "full_percent", "mean_usage_percent", "mean_running", "steps",
)  # fmt: skip
_PAGE = 64
#: Usage from which the cache counts as full.
_FULL = 0.99


@dataclass(frozen=True, kw_only=True)
class PressureLoad:
    """``shares``: of the pages that the roomy run held at most. ``engine``: keyword arguments of ``LLM``; None for the
    fake device, with the seconds that a step of it costs: ``base``, ``token`` for each token of a prompt, ``context``
    for each token that a row looks at (Qwen3-0.6B in bf16 on an H200). ``repeats``: runs of each; the best counts."""

    work: Workload
    shares: Sequence[float] = (0.95, 0.9, 0.8)
    engine: Mapping[str, Any] | None = None
    label: str = "a fake device"
    repeats: int = 1
    base: float = 0.5e-3
    token: float = 2.5e-6
    context: float = 27e-9


@dataclass(slots=True)
class _Seen:
    """Of one run. ``most``: pages held at once. Sums over steps: ``usage``, ``running`` rows, ``full`` caches; and from
    the first full one on, over those in which somebody waits for nothing but pages: ``tight``, ``tight_usage``,
    ``tight_full``."""

    seconds: float = 0.0
    steps: int = 0
    made: int = 0
    computed: int = 0
    preemptions: int = 0
    most: int = 0
    usage: float = 0.0
    running: int = 0
    full: int = 0
    tight: int = 0
    tight_usage: float = 0.0
    tight_full: int = 0

    @property
    def speed(self) -> float:
        return self.made / self.seconds


def growing(requests: int, seed: int, outputs: tuple[int, int]) -> Workload:
    """Short prompts and long answers, 256 at once: nobody can tell at admission what they will hold."""
    return Workload(
        name="pressure",
        about=f"{requests} requests, 32 to 256 in, {outputs[0]:,} to {outputs[1]:,} out",
        requests=requests,
        inputs=(32, 256),
        outputs=outputs,
        running=min(requests, 256),
        seed=seed,
    )


def pressure(load: PressureLoad) -> Iterator[dict[str, Any]]:
    """A record for the roomy run, and one for each share. Raises ``ConfigError`` where the whole cache is too small for
    the load, or a share for one request, and what building the engine raises."""
    llm = _built(load)
    try:
        bench = _Bench(llm, load)
        wanted = load.work.running * bench.kv.need(load.work.longest)
        every = min(wanted, bench.kv.layout.pages - 1)
        roomy = bench.run(every)
        if roomy.preemptions:
            raise ConfigError(
                f"{load.work.about}: even the whole cache of {every} pages is too small for all that run; {wanted} do"
            )
        shares = [(share, int(roomy.most * share)) for share in load.shares]
        for share, pages in shares:
            if pages < (least := bench.kv.need(load.work.longest)):
                raise ConfigError(f"--shares {share:g}: {pages} pages, and one request may need {least}")
        if load.engine is not None:  # what steps compile and capture is no run's
            bench.run(min(pages for _, pages in shares))
            roomy = bench.best(every)
        yield _record(load, roomy, roomy, 1.0, every)
        for share, pages in shares:
            yield _record(load, bench.best(pages), roomy, share, pages)
    finally:
        llm.close()


def _built(load: PressureLoad) -> LLM:
    """The engine; its prefix cache is on, as a user's is: preempted requests may find their own pages in it."""
    work = load.work
    if load.engine is not None:
        llm: LLM = offline.build([work], {"enable_prefix_caching": True, **load.engine})[0]
        return llm
    pages = work.running * -(-work.longest // _PAGE)
    return LLM.from_config(config_of(work.running, work.longest, pages, max_num_seqs=work.running))


def _record(load: PressureLoad, seen: _Seen, roomy: _Seen, share: float, pages: int) -> dict[str, Any]:
    steps, tight = seen.steps, seen.tight
    return report.record(
        workload=f"pressure {load.work.about}",
        impl="octavo",
        model=load.label,
        share=share,
        pages=pages,
        seconds=round(seen.seconds, 3),
        out_tok_s=round(seen.speed, 1),
        of_roomy_percent=round(100 * seen.speed / roomy.speed, 1),
        preemptions=seen.preemptions,
        recomputed_percent=round(100 * (seen.computed / roomy.computed - 1), 1),
        peak_usage_percent=round(100 * seen.most / pages, 1),
        sustained_usage_percent=round(100 * seen.tight_usage / tight, 1) if tight else None,
        full_percent=round(100 * seen.tight_full / tight, 1) if tight else None,
        full_usage_percent=round(100 * seen.full / steps, 1),
        mean_usage_percent=round(100 * seen.usage / steps, 1),
        mean_running=round(seen.running / steps, 1),
        steps=steps,
    )


class _Bench:
    """One engine, whose scheduler is told of fewer pages from run to run."""

    def __init__(self, llm: LLM, load: PressureLoad):
        assert isinstance(llm._engine.core, EngineCore)
        self.llm, self.load, self.core = llm, load, llm._engine.core
        self.kv = self.core.scheduler.book.kv
        self.prompts, self.params = offline.batch(load.work, llm)

    def best(self, pages: int) -> _Seen:
        return min((self.run(pages) for _ in range(self.load.repeats)), key=lambda seen: seen.seconds)

    def run(self, pages: int) -> _Seen:
        self.kv.pool = BlockPool(pages + 1, self.kv.groups)
        seen = _Seen()
        with self._watched(seen):
            seconds, seen.made, counts = offline.run(self.llm, self.prompts, self.params)
        seen.steps = counts["steps"]
        seen.seconds = seen.seconds if self.load.engine is None else seconds
        return seen

    @contextmanager
    def _watched(self, seen: _Seen) -> Iterator[None]:
        load, book, worker, pool = self.load, self.core.scheduler.book, self.core.worker, self.kv.pool
        forward, preempt = worker.forward, book.preempt
        filled = False

        def planned(plan: StepPlan) -> None:
            nonlocal filled
            contexts, known = int((plan.computed + plan.takes).sum()), int(plan.known.sum())
            seen.seconds += load.base + load.token * known + load.context * contexts
            seen.computed += known
            seen.most = max(seen.most, pool.pages - 1 - pool.free)
            usage, steps = pool.usage, plan.repeat
            full = usage >= _FULL
            filled |= full
            seen.usage += usage * steps
            seen.full += full * steps
            seen.running += len(plan.rows) * steps
            if filled and len(book.queue) and len(book.running) < book.most_running:
                seen.tight += steps
                seen.tight_usage += usage * steps
                seen.tight_full += full * steps
            forward(plan)

        def preempted(request: Request) -> None:
            seen.preemptions += 1
            preempt(request)

        worker.forward, book.preempt = planned, preempted  # type: ignore[method-assign]
        try:
            yield
        finally:
            del worker.forward, book.preempt
