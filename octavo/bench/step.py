"""`octavo bench step`: one decode step, taken apart. How long its two graphs take on the device, by rows and context,
and which kernels that time goes to.

A step is real: rows with pages of their own, drawn tokens, committed. Its contexts are made up: the lengths are set and
the pages hold what was there.
"""

import re
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from octavo.bench import report
from octavo.common.math import cdiv
from octavo.config.args import EngineArgs
from octavo.config.facts import ModelFacts
from octavo.config.resolve import resolve
from octavo.core.engine.core import EngineCore
from octavo.device.kernels.launch import taken
from octavo.device.kernels.variants import blank
from octavo.device.runner.later import AsyncRunner
from octavo.device.runner.runner import ModelRunner
from octavo.device.sampling.sampler import Draw
from octavo.device.worker.variants import walk
from octavo.errors import ConfigError
from octavo.wire.arrays import ints
from octavo.wire.plan import Kind, NewRow, PageDiff, StepPlan
from octavo.wire.request import Sampling

COLUMNS = ["rows", "context", "step_ms", "device_ms", "body_ms", "tail_ms", "tok_s", "tb_s"]
KERNELS = ["kernel", "calls", "us", "percent", "mb", "tb_s"]
#: Steps of a profile.
PROFILED = 8
#: Lines of the table of kernels.
LINES = 24
_ACTS = {0: "", 1: "silu", 2: "gelu", 3: "gelu_tanh"}


@dataclass(frozen=True)
class Launch:
    """A kernel of a step: its name, what it is called in tables, and the bytes of weights that it reads."""

    kernel: str
    name: str
    read: int


def measure(
    engine: Mapping[str, Any],
    rows: Sequence[int],
    contexts: Sequence[int],
    temperature: float,
    label: str,
    steps: int = 50,
) -> list[dict[str, Any]]:
    """A record for each number of rows and tokens of context, each over ``steps`` steps. ``engine``: keyword arguments
    of ``LLM``. Raises ``ConfigError`` where the cache is too small, and what building the engine raises."""
    wanted = {
        "max_num_seqs": max(rows),
        "max_model_len": max(contexts) + _slack(steps),
        "enable_prefix_caching": False,
    }
    config = resolve(EngineArgs.of({"skip_tokenizer_init": True, **wanted, **engine}))
    core = EngineCore(config)
    try:
        core.start()
        runner: ModelRunner = core.worker._runner  # type: ignore[attr-defined]
        pages = core.call("stats")["pages"]
        facts, dtype = config.model.facts, getattr(torch, config.model.dtype)
        found = []
        for count in rows:
            for context in contexts:
                need = count * cdiv(context + _slack(steps), runner.tables.page) * len(runner._groups)
                if need > pages:
                    raise ConfigError(f"{count} rows of {context} tokens need {need} pages, and the cache has {pages}")
                step = Step(runner, count, context, temperature, steps)
                figures = step.figures()
                kernels = step.kernels(launches(facts, dtype, count, step.draw) if step.replays else [])
                read = weights_read(facts, dtype) + count * context * cache_read(facts, dtype)
                seconds = figures.get("device_ms", figures["step_ms"]) / 1e3
                found.append(
                    report.record(
                        model=label,
                        dtype=config.model.dtype,
                        workload=f"step {count} x {context}",
                        rows=count,
                        context=context,
                        temperature=temperature,
                        **{name: round(value, 4) for name, value in figures.items()},
                        tok_s=round(count / seconds, 1),
                        read_mb=round(read / 1e6, 2),
                        tb_s=round(read / seconds / 1e12, 4),
                        kernels=kernels,
                    )
                )
        return found
    finally:
        core.close()


def _slack(steps: int) -> int:
    """Tokens that contexts grow by before they are set back."""
    return max(steps, PROFILED) + 8


class Step:
    """Decode steps of ``count`` rows at a context. ``replays``: whether they are graphs of a device."""

    def __init__(self, runner: ModelRunner, count: int, context: int, temperature: float, steps: int):
        self._runner, self._count, self._context, self._steps = runner, count, context, steps
        self._rows = ints(np.arange(count))
        self._number = 0
        self.draw = Draw.WARM if temperature else Draw.GREEDY
        self.replays = isinstance(runner, AsyncRunner) and runner._decode is not None
        page, groups = runner.tables.page, len(runner._groups)
        held = cdiv(context + _slack(steps), page)
        sampling = [Sampling(seed=row, temperature=temperature) for row in range(count)]
        ones, none = ints(np.ones(count)), ints(np.zeros(count))
        self._once(
            StepPlan(
                step=0,
                kind=Kind.MIXED,
                rows=self._rows,
                epochs=none,
                computed=none,
                takes=ones,
                known=ones,
                samples=np.ones(count, np.bool_),
                drafts=none,
                chunk=none,
                new=[NewRow(row, 0, 1, 1, runner.state.length, 0, (), one) for row, one in enumerate(sampling)],
                pages=PageDiff(
                    groups=ints(np.repeat(np.arange(groups), count)),
                    rows=ints(np.tile(self._rows, groups)),
                    starts=ints(np.zeros(groups * count)),
                    counts=ints(np.full(groups * count, held)),
                    pages=ints(1 + np.arange(groups * count * held)),
                ),
            )
        )

    def figures(self) -> dict[str, float]:
        """Milliseconds of a step, one at a time with its results waited for; of a device that replays graphs also those
        of its body and its tail alone, back to back."""
        found = {"step_ms": self._whole(self._steps)}
        if self.replays:
            body, tail = self._parts()
            found["device_ms"] = self._on_device(lambda: (body(), tail()))
            found["body_ms"] = self._on_device(body)
            found["tail_ms"] = self._on_device(tail)
        return found

    def kernels(self, known: Sequence[Launch]) -> list[dict[str, Any]]:
        """Where a step's time goes, longest first: a device's kernels, or a CPU's operators."""
        spans: Iterable[tuple[str, float, float]]
        if self.replays:
            body, tail = self._parts()
            self._reset()
            torch.cuda.synchronize()
        with profiler(self.replays) as profile:
            if self.replays:
                for _ in range(PROFILED):
                    body()
                    tail()
                torch.cuda.synchronize()
                self._settle()
            else:
                self._whole(PROFILED)
        if self.replays:
            spans = exclusive(device_spans(profile.function_events))
        else:
            spans = [
                (one.name, one.time_range.start, one.self_cpu_time_total)
                for one in profile.function_events
                if one.self_cpu_time_total > 0
            ]
        return tally(spans, PROFILED, known)

    @torch.inference_mode()
    def body_seconds(self, context: int) -> float:
        """Seconds of the body at a context no longer than this one's, captured anew, with the kernels that would be
        chosen now. Of a device that replays graphs."""
        decode = self._runner._decode  # type: ignore[attr-defined]
        self._runner._platform.enter()  # type: ignore[attr-defined]
        decode._sizes.clear()
        longest, self._context = self._context, context
        try:
            self._reset()
            for _ in range(2):  # captured by the second
                decode.body(self._rows)
            return min(self._on_device(lambda: decode.body(self._rows)) for _ in range(2)) / 1e3
        finally:
            self._context = longest

    def _parts(self) -> tuple[Callable[[], Any], Callable[[], Any]]:
        decode = self._runner._decode  # type: ignore[attr-defined]
        self._runner._platform.enter()  # type: ignore[attr-defined]
        for _ in range(2):  # captured by the second
            step = decode.body(self._rows)
            decode.tail(step, self.draw)
        self._settle()
        return (lambda: decode.body(self._rows)), (lambda: decode.tail(step, self.draw))

    @torch.inference_mode()
    def _on_device(self, run: Callable[[], Any]) -> float:
        self._reset()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(3):
            run()
        begin.record()
        for _ in range(self._steps):
            run()
        end.record()
        end.synchronize()
        self._settle()
        return begin.elapsed_time(end) / self._steps

    @torch.inference_mode()
    def _settle(self) -> None:
        """Tails ran that no ticket waits for: the ring counts as before."""
        self._runner._ring.resync()  # type: ignore[attr-defined]

    def _whole(self, steps: int) -> float:
        self._reset()
        for _ in range(2):
            self._decode(self._context)
        times = []
        for number in range(steps):
            begin = time.perf_counter()
            self._decode(self._context + number)
            times.append(time.perf_counter() - begin)
        return 1e3 * report.median(times)

    def _decode(self, length: int) -> None:
        count = self._count
        ones, none = ints(np.ones(count)), ints(np.zeros(count))
        self._once(
            StepPlan(
                step=self._number,
                kind=Kind.DECODE,
                rows=self._rows,
                epochs=none,
                computed=ints(np.full(count, length)),
                takes=ones,
                known=none,
                samples=np.ones(count, np.bool_),
                drafts=none,
            )
        )

    def _once(self, plan: StepPlan) -> None:
        self._runner.forward(plan)
        (ticket,) = self._runner.sample(None)
        result = ticket.wait(600.0)
        self._number += 1
        if result.fault is not None:
            raise RuntimeError(f"a step of {self._count} rows failed: {result.fault}")

    @torch.inference_mode()
    def _reset(self) -> None:
        """All rows are at the context again."""
        state = self._runner.state
        state.computed.tensor[: self._count] = self._context
        state.last.tensor[: self._count] = 1
        state.alive.tensor[: self._count] = True


def profiler(on_gpu: bool) -> Any:
    """torch's profiler, its own part alone: the whole one imports a compiler first, which takes seconds."""
    return torch.autograd.profiler.profile(use_device="cuda" if on_gpu else None, use_kineto=True)


def device_spans(events: Iterable[Any]) -> list[tuple[str, float, float]]:
    """(name, start, microseconds) of what ran on the device, in its order."""
    kind = torch.autograd.DeviceType.CUDA
    spans = [(one.name, one.time_range.start, one.time_range.elapsed_us()) for one in events if one.device_type == kind]
    return sorted(spans, key=lambda span: span[1])


def exclusive(spans: Iterable[tuple[str, float, float]]) -> Iterator[tuple[str, float, float]]:
    """Spans in the order of their starts, each from where all before it have ended: a kernel may be there early and
    wait for the one before it, which is that one's time."""
    ended = float("-inf")
    for name, start, us in spans:
        begin, end = max(start, ended), start + us
        yield short(name), begin, max(end - begin, 0.0)
        ended = max(ended, end)


def short(name: str) -> str:
    """A kernel's name without what its library adds: namespaces and the arguments of templates."""
    bare = re.sub(r"\(anonymous namespace\)", "", name.removeprefix("void ")).partition("<")[0]
    return bare.rpartition("::")[2] or name


def tally(spans: Iterable[tuple[str, float, float]], steps: int, known: Sequence[Launch] = ()) -> list[dict[str, Any]]:
    """Spans (name, start, microseconds) by name: calls and microseconds a step, longest first. A kernel that is
    launched more than once a step is told apart by its place in ``known``, the step's launches in their order."""
    waiting: dict[str, deque[Launch]] = defaultdict(deque)
    for launch in known:
        waiting[launch.kernel].append(launch)
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for name, _, us in spans:
        read, kernel = 0, name
        if name in waiting:
            waiting[name].rotate(-1)
            kernel, read = waiting[name][-1].name, waiting[name][-1].read
        line = sums[kernel]
        line[0] += 1
        line[1] += us
        line[2] += read
    whole = sum(us for _, us, _ in sums.values()) or 1.0
    return [
        {
            "kernel": name,
            "calls": round(calls / steps, 2),
            "us": round(us / steps, 2),
            "percent": round(100 * us / whole, 1),
            "mb": round(read / steps / 1e6, 2) if read else None,
            "tb_s": round(read / us / 1e6, 3) if read else None,
        }
        for name, (calls, us, read) in sorted(sums.items(), key=lambda item: -item[1][1])
    ]


def launches(facts: ModelFacts, dtype: torch.dtype, count: int, draw: Draw) -> list[Launch]:
    """The kernels of ours that a decode step launches, in their order."""
    found: list[Launch] = []

    def take(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], pdl: int, options: dict[str, Any]) -> None:
        blank(args)
        if kernel is not None:
            name = kernel.fn.__name__
            found.append(Launch(name, *_described(name, options, dtype)))

    with taken(take):
        walk(facts, dtype, max_num_seqs=count, max_model_len=1024, sizes=(count,), draws=(draw,))
    return found


def _described(name: str, options: Mapping[str, Any], dtype: torch.dtype) -> tuple[str, int]:
    """What a launch is called, and the bytes of weights that it reads."""
    if name not in ("tile", "gemv"):
        return name, 0
    gated = options["ACT"] > 0
    wide = options["N"] * (2 if gated and name == "gemv" else 1)
    words = ["norm" * options["NORM"], _ACTS[options["ACT"]], "add" * options["ADD"]]
    shape = f"{name} {wide}x{options['K']} {'+'.join(filter(None, words))}".rstrip()
    return shape, wide * options["K"] * dtype.itemsize


def weights_read(facts: ModelFacts, dtype: torch.dtype) -> int:
    """Bytes of matrices that a decode step reads."""
    q, kv = facts.q_heads * facts.head_dim, facts.kv_heads * facts.head_dim
    layer = facts.hidden * (2 * q + 2 * kv + 3 * facts.ffn)
    return (facts.layers * layer + facts.vocab * facts.hidden) * dtype.itemsize


def cache_read(facts: ModelFacts, dtype: torch.dtype) -> int:
    """Bytes of keys and values that a decode step reads for a token of a context."""
    return 2 * facts.layers * facts.kv_heads * facts.head_dim * dtype.itemsize


def shown(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The records for a terminal: a table of steps, and one of kernels for each."""
    yield report.table([dict(one) for one in records], COLUMNS)
    for one in records:
        yield f"\n{one['rows']} rows, context {one['context']}: microseconds a step"
        yield report.table(one["kernels"][:LINES], KERNELS)
