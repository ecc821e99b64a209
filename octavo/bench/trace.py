"""`octavo bench step --trace`: some steps in the middle of a real run, on one time line with what the host did: how
much of it the device was busy, and what the host was at while the device had nothing to do.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from octavo.bench import offline, report
from octavo.bench.step import device_spans, exclusive, profiler, short, tally
from octavo.bench.workloads import Workload

#: Where a host's time goes: (attribute of the core, "" for itself; method; what it is called).
PHASES = (
    ("", "poll", "poll"),
    ("scheduler", "schedule", "plan"),
    ("scheduler", "update", "update"),
    ("worker", "forward", "launch body"),
    ("worker", "sample", "launch tail"),
    ("", "_result", "wait"),
)
#: Gaps that are told.
GAPS = 12
COLUMNS = ["gap_us", "after", "before", "phase"]
SHARES = ["phase", "us", "percent"]


@dataclass(frozen=True)
class Span:
    """Microseconds on the profile's clock."""

    name: str
    start: float
    end: float


def trace(work: Workload, engine: Mapping[str, Any], steps: int, label: str, skip: int | None = None) -> dict[str, Any]:
    """Run ``work`` twice, the second time with ``steps`` steps profiled (fewer where the run has fewer), from step
    ``skip`` on (None: a third of the run's): a record. ``engine``: keyword arguments of ``LLM``."""
    llm, _ = offline.build([work], dict(engine))
    try:
        prompts, params = offline.batch(work, llm)
        _, _, counts = offline.run(llm, prompts, params)
        steps = min(steps, counts["steps"])
        first = min(counts["steps"] // 3, counts["steps"] - steps) if skip is None else skip
        core = llm._engine.core
        on_gpu = llm.config.device.platform == "cuda"
        with profiled(core, first, steps, on_gpu) as got:
            seconds, made, _ = offline.run(llm, prompts, params)
        if not got:
            raise RuntimeError(f"the run of {counts['steps']} steps ended before step {first} and {steps} more")
        device, host = got[0]
        figures = analyse(device, host)
        kernels = tally(exclusive((one.name, one.start, one.end - one.start) for one in device), steps)
    finally:
        llm.close()
    return report.record(
        model=label,
        workload=f"trace {work.name}",
        about=work.about,
        steps=steps,
        out_tok_s=round(made / seconds, 1),
        **figures,
        kernels=kernels,
    )


@contextmanager
def profiled(core: Any, first: int, steps: int, on_gpu: bool) -> Iterator[list[tuple[list[Span], list[Span]]]]:
    """Within it, steps ``first`` to ``first + steps`` of ``core`` are profiled, in whatever thread runs them. Gives a
    list that then holds (what ran on the device, what the host did)."""
    got: list[tuple[list[Span], list[Span]]] = []
    running: list[Any] = []
    seen = [0]
    step = core.step

    def counted() -> Any:
        if seen[0] == first:
            running.append(profiler(on_gpu))
            running[0].__enter__()
        seen[0] += 1
        answer = step()
        if running and seen[0] == first + steps:
            _stop(running, got, on_gpu)
        return answer

    names = [what for *_, what in PHASES]
    with _named(core):
        core.step = counted
        try:
            yield got
        finally:
            del core.step
            if running:
                running.pop().__exit__(None, None, None)
    assert all(one.name in names for _, host in got for one in host)


def _stop(running: list[Any], got: list[tuple[list[Span], list[Span]]], on_gpu: bool) -> None:
    if on_gpu:
        torch.cuda.synchronize()
    profile = running.pop()
    profile.__exit__(None, None, None)
    names = {what for *_, what in PHASES}
    host, work = [], []
    for one in profile.function_events:
        if one.device_type != torch.autograd.DeviceType.CPU:
            continue
        span = Span(one.name, one.time_range.start, one.time_range.end)
        if one.name in names:
            host.append(span)
        elif not on_gpu and one.cpu_parent is not None and one.cpu_parent.name in names:
            work.append(span)
    if on_gpu:
        spans = device_spans(profile.function_events)
        work = [Span(name, start, start + us) for name, start, us in spans if name not in names]
    got.append((sorted(work, key=lambda one: one.start), sorted(host, key=lambda one: one.start)))


@contextmanager
def _named(core: Any) -> Iterator[None]:
    """Within it the core's phases have names in a profile."""
    changed: list[tuple[Any, str]] = []
    try:
        for where, method, what in PHASES:
            owner = getattr(core, where) if where else core
            setattr(owner, method, _wrapped(getattr(owner, method), what))
            changed.append((owner, method))
        yield
    finally:
        for owner, method in changed:
            delattr(owner, method)


def _wrapped(function: Callable[..., Any], what: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.profiler.record_function(what):
            return function(*args, **kwargs)

    return call


def analyse(device: Sequence[Span], host: Sequence[Span]) -> dict[str, Any]:
    """``busy_percent``: of the time from the first to the last thing on the device; ``gaps``: the longest times in
    which it had nothing, between what, and in which phase of the host they began; ``idle``: all of them by phase."""
    gaps: list[tuple[float, float, str, str]] = []
    busy, end, last = 0.0, None, ""
    for one in device:
        if end is None or one.start > end:
            if end is not None:
                gaps.append((end, one.start, last, one.name))
            busy += one.end - one.start
            end, last = one.end, one.name
        elif one.end > end:
            busy += one.end - end
            end, last = one.end, one.name
    whole = (end or 0.0) - device[0].start if device else 0.0
    idle: dict[str, float] = defaultdict(float)
    told = []
    for begin, until, after, before in gaps:
        parts = _shares(begin, until, host)
        for phase, us in parts.items():
            idle[phase] += us
        told.append((until - begin, after, before, max(parts, key=lambda phase: parts[phase])))
    told.sort(key=lambda gap: -gap[0])
    return {
        "window_us": round(whole, 1),
        "busy_percent": round(100 * busy / whole, 1) if whole else 0.0,
        "gaps": [
            {"gap_us": round(us, 1), "after": short(after), "before": short(before), "phase": phase}
            for us, after, before, phase in told[:GAPS]
        ],
        "idle": [
            {"phase": phase, "us": round(us, 1), "percent": round(100 * us / whole, 1)}
            for phase, us in sorted(idle.items(), key=lambda item: -item[1])
        ],
    }


def _shares(begin: float, end: float, host: Sequence[Span]) -> dict[str, float]:
    """Microseconds between ``begin`` and ``end`` that each phase of the host covers, by the innermost one; "other" is
    what none covers."""
    inside = [one for one in host if one.start < end and one.end > begin]
    edges = sorted({begin, end, *(edge for one in inside for edge in (one.start, one.end) if begin < edge < end)})
    found: dict[str, float] = defaultdict(float)
    for low, high in pairwise(edges):
        over = [one for one in inside if one.start <= low and one.end >= high]
        name = min(over, key=lambda one: one.end - one.start).name if over else "other"
        found[name] += high - low
    return dict(found)


def shown(record: Mapping[str, Any], kernels: Sequence[str], lines: int) -> Iterator[str]:
    """The record for a terminal."""
    yield (
        f"{record['workload']}: {record['steps']} steps in {record['window_us'] / 1e3:,.1f} ms, "
        f"the device busy {record['busy_percent']}%"
    )
    yield report.table(record["kernels"][:lines], kernels)
    yield "\nidle, by what the host did"
    yield report.table(record["idle"], SHARES)
    yield "\nthe longest gaps"
    yield report.table(record["gaps"], COLUMNS)
