"""`octavo bench pressure`: what a full KV cache costs. The same requests twice: with room for all that run, then with a
share of the pages that they held at most, so that some are preempted and computed again.

The device is a fake, and time is counted, not taken: a step costs what its tokens and contexts cost. So a figure is the
scheduler's alone, and the same on every machine.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from octavo.bench import report
from octavo.bench.host import config_of
from octavo.bench.workloads import Workload
from octavo.core.engine.core import EngineCore
from octavo.wire.arrays import pack_tokens
from octavo.wire.plan import StepPlan
from octavo.wire.request import EngineRequest, Sampling

COLUMNS = (
    "workload", "share", "pages", "out_tok_s", "of_roomy_percent", "preemptions", "recomputed_percent",
    "full_usage_percent", "mean_usage_percent", "mean_running", "steps",
)  # fmt: skip
_VOCAB, _PAGE = 32_000, 64
#: Usage from which the cache counts as full.
_FULL = 0.99


@dataclass(frozen=True, kw_only=True)
class PressureLoad:
    """``shares``: of the pages that the roomy run held at most. Seconds that a step costs: ``base``, ``token`` for each
    token of a prompt, ``context`` for each token that a row looks at (Qwen3-0.6B in bf16 on an H200)."""

    work: Workload
    shares: Sequence[float] = (0.95, 0.9, 0.8)
    base: float = 0.5e-3
    token: float = 2.5e-6
    context: float = 27e-9


@dataclass(slots=True)
class _Seen:
    seconds: float = 0.0
    steps: int = 0
    made: int = 0
    computed: int = 0
    preemptions: int = 0
    most: int = 0
    full: int = 0
    usage: float = 0.0
    running: int = 0


def growing(requests: int, seed: int = 0) -> Workload:
    """Short prompts and long answers, 256 at once: nobody can tell at admission what they will hold."""
    return Workload(
        name="pressure",
        about=f"{requests} requests, 32 to 256 in, 512 to 2,048 out",
        requests=requests,
        inputs=(32, 256),
        outputs=(512, 2048),
        running=min(requests, 256),
        seed=seed,
    )


def pressure(load: PressureLoad) -> list[dict[str, Any]]:
    """A record for the roomy run, and one for each share. Raises ``ConfigError`` where a share is too small for one."""
    longest = load.work.longest
    every = load.work.running * -(-longest // _PAGE)
    roomy = _run(load, every)
    assert not roomy.preemptions
    records = [_record(load, roomy, roomy, 1.0, every)]
    for share in load.shares:
        pages = int(roomy.most * share)
        records.append(_record(load, _run(load, pages), roomy, share, pages))
    return records


def _record(load: PressureLoad, seen: _Seen, roomy: _Seen, share: float, pages: int) -> dict[str, Any]:
    speed, free = seen.made / seen.seconds, roomy.made / roomy.seconds
    return report.record(
        workload=f"pressure {load.work.about}",
        impl="octavo",
        model="a fake device",
        share=share,
        pages=pages,
        out_tok_s=round(speed, 1),
        of_roomy_percent=round(100 * speed / free, 1),
        preemptions=seen.preemptions,
        recomputed_percent=round(100 * (seen.computed / roomy.computed - 1), 1),
        full_usage_percent=round(100 * seen.full / seen.steps, 1),
        mean_usage_percent=round(100 * seen.usage / seen.steps, 1),
        mean_running=round(seen.running / seen.steps, 1),
        steps=seen.steps,
    )


def _run(load: PressureLoad, pages: int) -> _Seen:
    work, seen = load.work, _Seen()
    config = config_of(work.running, work.longest, pages, max_num_seqs=work.running)
    core = EngineCore(config)
    core.start()
    pool, forward = core.scheduler.book.kv.pool, core.worker.forward

    def counted(plan: StepPlan) -> None:
        contexts = int((plan.computed + plan.takes).sum())
        seen.seconds += load.base + load.token * int(plan.known.sum()) + load.context * contexts
        seen.steps += 1
        seen.computed += int(plan.known.sum())
        held = pool.pages - 1 - pool.free
        seen.most = max(seen.most, held)
        seen.usage += pool.usage
        seen.full += pool.usage >= _FULL
        seen.running += len(plan.rows)
        forward(plan)

    core.worker.forward = counted  # type: ignore[method-assign]
    waiting = deque(
        EngineRequest(handle, pack_tokens(ids), Sampling(seed=handle), len(ids) + out, every=0)
        for handle, (ids, out) in enumerate(work.make(_VOCAB))
    )
    core.add(list(waiting))
    while core.scheduler.unfinished or core.outstanding or core.runnable or waiting:
        waiting.clear()
        for reply in core.poll(0.0):
            seen.made += len(reply.tokens)
            if reply.stats is not None:
                seen.preemptions += reply.stats.preemptions
    core.close()
    return seen
