"""`octavo bench host`: microseconds of host a decode step, where the device costs nothing.

Front and core are in this process, as in ``LLM``; the device is a fake that answers at once. Figures are processor time
a step, from the first step in which all rows decode to the last, the least of several runs.
"""

import cProfile
import pstats
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.bench import report
from octavo.config.engine import CacheSection, EngineConfig, ModelSection, ScheduleSection, TextSection
from octavo.config.facts import ModelFacts
from octavo.core.engine.core import EngineCore
from octavo.front.fanout import Desk, Group
from octavo.front.intake import Intake, Prompt
from octavo.params import RequestOutputKind, SamplingParams
from octavo.wire.plan import Kind, StepPlan

COLUMNS = ("workload", "host_us", "schedule_us", "update_us", "replies_us", "collect_us", "loop_us", "admit_us")
_VOCAB, _PAGE, _BUDGET = 32_000, 64, 8192
_PROMPT = 100


@dataclass(frozen=True, kw_only=True)
class HostLoad:
    """``rows`` requests at once that make ``outputs`` tokens each. ``stream``: clients hear of every token, instead of
    all at the end. ``top``: so many functions are told, by their own time, of a run of its own under a profiler."""

    rows: int
    outputs: int = 512
    stream: bool = False
    repeats: int = 3
    top: int = 0


class _Meter:
    """Processor seconds of parts: on a machine that others use too, the time on a clock would be theirs as well."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)

    def wrap(self, owner: Any, name: str, part: str) -> None:
        call: Callable[..., Any] = getattr(owner, name)
        spent, clock = self.spent, time.thread_time

        def timed(*args: Any) -> Any:
            begin = clock()
            try:
                return call(*args)
            finally:
                spent[part] += clock() - begin

        setattr(owner, name, timed)


def host(load: HostLoad) -> dict[str, Any]:
    """A record of one load."""
    runs = [_run(load) for _ in range(load.repeats)]
    best = {part: round(min(run[part] for run in runs), 1) for part in runs[0]}
    kind = "streams" if load.stream else "answers at the end"
    return report.record(
        workload=f"host {load.rows} {kind}",
        impl="octavo",
        model="a fake device",
        **best,
        **({"functions": _profile(load)} if load.top else {}),
    )


def config_of(rows: int, longest: int, pages: int, **schedule: Any) -> EngineConfig:
    """An engine over the fake device, with so many pages of 64 tokens, at the depth of a GPU."""
    facts = ModelFacts(
        architecture="Fake", vocab=_VOCAB, hidden=8, layers=1, q_heads=1, kv_heads=1, head_dim=8, ffn=8,
        max_positions=longest, raw={"fake": {"vocab": _VOCAB, "strict": False, "page_sizes": (_PAGE,)}},
    )  # fmt: skip
    return EngineConfig(
        model=ModelSection(path="fake", facts=facts, dtype="float32"),
        text=TextSection(tokenizer="", served_names=("fake",), skip_tokenizer=True, max_n=1),
        cache=CacheSection(page=_PAGE, memory=(pages + 1) * _PAGE * 4),
        schedule=ScheduleSection(
            **{"max_num_seqs": rows, "max_num_batched_tokens": _BUDGET, "depth": 2, "max_model_len": longest} | schedule
        ),
        worker="octavo.testing.fakes:FakeWorker",
    )


class _House:
    """An engine and its front, and a batch of requests that are open."""

    def __init__(self, load: HostLoad):
        longest = _PROMPT + load.outputs
        config = config_of(load.rows, longest, 2 * load.rows * -(-longest // _PAGE))
        self.core = EngineCore(config)
        ready = self.core.start()
        self.desk = Desk()
        self.intake = Intake(config, None, ready)
        self.load = load
        self.first = float("nan")

    def open(self) -> None:
        kind = RequestOutputKind.DELTA if self.load.stream else RequestOutputKind.FINAL_ONLY
        begin = time.thread_time()
        for index in range(self.load.rows):
            params = SamplingParams(
                max_tokens=self.load.outputs, ignore_eos=True, detokenize=False, seed=index, output_kind=kind
            )
            prompt = Prompt(None, [(index * 31 + at) % _VOCAB for at in range(_PROMPT)])
            handles = self.desk.handles(1)
            (request,) = self.intake.admit(prompt, params, handles, cap=True, every=int(self.load.stream))
            group = Group(str(index), None, prompt.ids, params, None, handles, request.arrival)
            self.desk.open(group)
            self.core.add([request])
        self.admit = (time.thread_time() - begin) / self.load.rows

    def drive(self) -> None:
        while len(self.desk):
            for reply in self.core.poll(0.0):
                self.desk.read(reply)


def _run(load: HostLoad) -> dict[str, float]:
    house, meter = _House(load), _Meter()
    core, begun = house.core, [0.0]
    for owner, name, part in (
        (core.scheduler, "schedule", "schedule"),
        (core.scheduler, "update", "update"),
        (core.worker, "forward", "device"),
        (core.worker, "sample", "device"),
        (core.replies, "flush", "replies"),
        (house.desk, "read", "collect"),
    ):
        meter.wrap(owner, name, part)
    forward = core.worker.forward

    def marked(plan: StepPlan) -> None:
        if plan.kind == Kind.DECODE and not begun[0]:
            meter.spent.clear()
            begun[:] = time.thread_time(), core.steps
        forward(plan)

    core.worker.forward = marked  # type: ignore[method-assign]
    house.open()
    house.drive()
    total, steps = time.thread_time() - begun[0], core.steps - begun[1]
    core.close()
    spent = {part: seconds / steps * 1e6 for part, seconds in meter.spent.items()}
    whole = total / steps * 1e6 - spent.pop("device")
    found = {f"{part}_us": spent.get(part, 0.0) for part in ("schedule", "update", "replies", "collect")}
    return {"host_us": whole, **found, "loop_us": whole - sum(found.values()), "admit_us": house.admit * 1e6}


def _profile(load: HostLoad) -> dict[str, float]:
    """Microseconds a step of the functions with the most time of their own, as a profiler sees them: it makes calls
    slower, so their order counts, not their sum."""
    house = _House(load)
    house.open()
    profiler = cProfile.Profile()
    profiler.enable()
    house.drive()
    profiler.disable()
    house.core.close()
    entries: Any = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    own = {(where[0].rpartition("octavo/")[2], where[2]): entry[2] for where, entry in entries.items()}
    ranked: Sequence[tuple[tuple[str, str], float]] = sorted(own.items(), key=lambda item: -item[1])[: load.top]
    return {f"{file} {name}".strip("~ "): round(spent / load.outputs * 1e6, 1) for (file, name), spent in ranked}
