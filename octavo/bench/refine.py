"""The second half of `octavo tune`: of each question the few fastest answers, tried again in whole steps.

Alone, a kernel follows its like. In a step it follows others, which hold registers and shared memory when it comes, and
it is what the next one finds: the fastest alone is not always the fastest there, nor is when it lets the next kernel
start. So one question after another is answered by the time of the body of a step, the others' answers being kept.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch

from octavo.bench import candidates, report
from octavo.bench.step import Step
from octavo.bench.tune import COPIES, ROTATED, Choice, Key, Tried, choices
from octavo.common.math import cdiv
from octavo.config.args import EngineArgs
from octavo.config.facts import ModelFacts
from octavo.config.resolve import resolve
from octavo.core.engine.core import EngineCore
from octavo.device.kernels import tuned
from octavo.device.kernels.joined import Tile
from octavo.device.kernels.launch import LATE
from octavo.device.runner.decode import SIZES

#: Answers of a question that are tried of those that are fastest alone, and of ways to decode also of the likely ones,
#: which stand out in steps alone.
FEW, LIKELY = 4, 12
#: Rows that Hopper's own matrix instruction takes. Fewer go through an older one, or through it with rows of nothing:
#: what is fastest for so many is tried for fewer.
WIDE = 64
#: Of the finalists about a product, the first few are also tried with the next kernel starting late.
LATER = 2
#: Tokens of context at which products are tried, and at which decode is, each counting as long as it takes.
CONTEXT, CONTEXTS = 256, (256, 1024)
#: Steps of a measurement, and tokens that contexts are given beyond their length.
STEPS, SLACK = 12, 64
#: What must be gained for a change: less is noise.
GAIN = 0.002

#: Rows, tokens of context, table -> seconds of a step's body. Raises what running it raises.
Measure = Callable[[int, int, tuned.Table], float]


@dataclass
class Refined:
    """``chosen``: the answer to each question; ``steps``: of each number of rows, seconds of a step at each context
    with the fastest alone, and with what was chosen."""

    chosen: dict[Key, Choice] = field(default_factory=dict)
    steps: dict[int, tuple[list[float], list[float]]] = field(default_factory=dict)


def finalists(found: Mapping[Key, Tried]) -> dict[Key, list[Choice]]:
    """What is tried again of each question, the fastest alone first."""
    tried: dict[Key, list[Choice]] = {}
    for key, each in found.items():
        few = list(dict.fromkeys([each.best(choices(key)[0]), *each.ranked()]))[:FEW]
        if isinstance(key, tuned.Decode):
            more: list[Choice] = [tuple(how) for how in candidates.likely(key)[:LIKELY]]
        else:
            if key.rows < WIDE and (wide := found.get(key._replace(rows=WIDE))) is not None:
                fitting = (one for one in wide.ranked() if one and Tile._make(one).fits(*key[:3]))
                few = [*few, *islice(fitting, LATER)]
            more = [tuple(how) for one in few if one and (how := candidates.roomy(Tile._make(one), key))]
        tried[key] = list(dict.fromkeys([*few, *more]))
    return tried


def later(key: Key, ranked: Sequence[Choice]) -> list[Choice]:
    """What is tried once the finalists are ranked: the fastest products, the next kernel starting late."""
    if isinstance(key, tuned.Decode):
        return []
    return [(*how[:-1], LATE) for how in ranked[:LATER] if how]


def all_tried(tried: Mapping[Key, Sequence[Choice]]) -> dict[Key, list[Choice]]:
    """All that may be measured of each question with these finalists: what has to be compiled."""
    return {key: [*few, *(how for one in few for how in later(key, [one]))] for key, few in tried.items()}


def refine(
    tried: Mapping[Key, Sequence[Choice]],
    kv_heads: int,
    measure: Measure,
    base: tuned.Table | None = None,
    over: Callable[[], bool] = lambda: False,
    say: Callable[[str], object] = lambda line: None,
) -> Refined:
    """Answers in whole steps to each question that has finalists in ``tried``, for the rows that it is about, until
    ``over``; to other questions the answers are ``base``'s. What fails is not chosen. ``say`` hears what was chosen,
    step by step."""
    chosen: dict[Key, Choice] = {key: few[0] for key, few in tried.items()}
    done = Refined(chosen)

    def cost(contexts: Sequence[int], key: Key | None = None, how: Choice = None) -> float:
        return sum(
            _time(measure, rows, context, chosen if key is None else chosen | {key: how}, base) for context in contexts
        )

    def timed(key: Key, few: Sequence[Choice], contexts: Sequence[int]) -> dict[Choice, float] | None:
        """Seconds of a step with each answer; None where the time is over."""
        costs: dict[Choice, float] = {}
        for how in few:
            if over():
                say(f"{rows} rows: the time is over")
                return None
            costs[how] = cost(contexts, key, how)
        return costs

    for rows in sorted({rows_of(key, kv_heads) for key in tried}, reverse=True):
        keys = [key for key in tried if rows_of(key, kv_heads) == rows]
        before = [cost((context,)) for context in CONTEXTS]
        for key in sorted(keys, key=lambda key: isinstance(key, tuned.Decode)):  # attention last: it is the longest
            contexts = CONTEXTS if isinstance(key, tuned.Decode) else (CONTEXT,)
            costs = timed(key, tried[key], contexts)
            if costs is None:
                return done
            late = timed(key, later(key, sorted(costs, key=lambda how: costs[how])), contexts)
            if late is None:
                return done
            costs |= late
            first, winner = tried[key][0], min(costs, key=lambda how: costs[how])
            # the least of several measurements is a lucky one: both again, in turn
            again = [cost(contexts, key, how) for how in (winner, first)]
            if winner != first and again[0] < (1 - GAIN) * again[1]:
                chosen[key] = winner
            say(f"{rows} rows, {' '.join(map(str, key))}: {1e3 * costs[first]:.3f} ms, now {chosen[key]}")
        done.steps[rows] = before, [cost((context,)) for context in CONTEXTS]
    return done


def rows_of(key: Key, kv_heads: int) -> int:
    """At which a question is tried: the largest step that asks it."""
    if isinstance(key, tuned.Decode):
        return SIZES[max(bisect_right(SIZES, key.pairs // kv_heads) - 1, 0)]
    return key.rows


def _time(measure: Measure, rows: int, context: int, chosen: Mapping[Key, Choice], base: tuned.Table | None) -> float:
    try:
        return measure(rows, context, table(chosen, base))
    except Exception:  # a choice that does not run is none
        return float("inf")


def table(chosen: Mapping[Key, Choice], base: tuned.Table | None = None) -> tuned.Table:
    """The answers as a table, over those of ``base``."""
    made = tuned.Table() if base is None else tuned.Table(dict(base.linear), dict(base.decode))
    for key, how in chosen.items():
        if isinstance(key, tuned.Decode):
            made.decode[key] = how or ()
        else:
            made.linear[key] = how
    return made


def told(refined: Refined, layers: int) -> list[dict[str, Any]]:
    """Milliseconds of ``layers`` layers, for the record."""
    return [
        {"rows": rows, "layers": layers, "contexts": list(CONTEXTS)}
        | {
            name: [round(1e3 * t, 4) if t < float("inf") else None for t in times]
            for name, times in zip(("alone_ms", "chosen_ms"), both, strict=True)
        }
        for rows, both in sorted(refined.steps.items())
    ]


def shown(steps: Sequence[Mapping[str, Any]]) -> str:
    """The same for a terminal."""
    lines = [
        {
            "rows": one["rows"],
            "layers": one["layers"],
            "context": context,
            "alone_ms": one["alone_ms"][at],
            "chosen_ms": one["chosen_ms"][at],
            "gain_percent": _gain(one["alone_ms"][at], one["chosen_ms"][at]),
        }
        for one in steps
        for at, context in enumerate(one["contexts"])
    ]
    return report.table(lines, ["rows", "layers", "context", "alone_ms", "chosen_ms", "gain_percent"])


def _gain(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else round(100 * (before / after - 1), 1)


class Steps:
    """``Measure`` on this machine's GPU: a few layers of the model, as many as its shared cache does not hold. A
    context manager."""

    def __init__(self, model: str, facts: ModelFacts, dtype: torch.dtype, rows: int):
        heads = facts.q_heads * facts.head_dim
        layer = facts.hidden * (2 * heads + 2 * facts.kv_heads * facts.head_dim + 3 * facts.ffn) * dtype.itemsize
        self.layers = min(facts.layers, max(2, min(COPIES, cdiv(ROTATED, layer))))
        self._longest = min(max(CONTEXTS), facts.max_positions - SLACK)
        longest = self._longest + SLACK
        config = resolve(
            EngineArgs.of(
                {
                    "model": model,
                    "load_format": "dummy",
                    "dtype": str(dtype).removeprefix("torch."),
                    "skip_tokenizer_init": True,
                    "max_num_seqs": rows,
                    "max_model_len": longest,
                    "enable_prefix_caching": False,
                    "kv_cache_memory_bytes": (rows + 1)
                    * longest
                    * 2
                    * self.layers
                    * facts.kv_heads
                    * facts.head_dim
                    * dtype.itemsize,
                }
            )
        )
        few = replace(config.model.facts, layers=self.layers, windows=facts.windows[: self.layers])
        self._core = EngineCore(replace(config, model=replace(config.model, facts=few)))
        self._step: tuple[int, Step] | None = None

    def __enter__(self) -> "Steps":
        self._core.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._core.close()

    def __call__(self, rows: int, context: int, table: tuned.Table) -> float:
        runner: Any = self._core.worker._runner  # type: ignore[attr-defined]
        if self._step is None or self._step[0] != rows:
            self._step = rows, Step(runner, rows, self._longest, 0.0, STEPS)
        with tuned.using(table):
            return self._step[1].body_seconds(min(context, self._longest))
