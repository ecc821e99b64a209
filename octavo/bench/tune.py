"""`octavo tune`: measure every candidate of a model's products and of its decode attention on this GPU, and keep the
best as a table that later starts read (``kernels.tuned``).

A measurement is a CUDA graph of one kernel after another, as a step launches them, each on weights (or pages) of its
own: together more than the shared cache holds. The compiler works ahead in a process a core.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from octavo.bench import candidates, report
from octavo.common.math import cdiv
from octavo.config.facts import ModelFacts
from octavo.device.attention.base import LayerAttention
from octavo.device.attention.triton import Decode, TritonAttention, TritonMeta
from octavo.device.attention.triton import rule as decode_rule
from octavo.device.kernels import tuned
from octavo.device.kernels.joined import UNMEASURED, Tile, joined, squares_of, with_squares
from octavo.device.kernels.joined import rule as tile_rule
from octavo.device.kernels.variants import Variant, listing
from octavo.device.runner.decode import SIZES
from octavo.device.sampling.sampler import Draw
from octavo.device.worker.variants import walk
from octavo.errors import ConfigError

#: Bytes that a measurement goes through before it comes back to the first: an H200's shared cache has 50 MB.
ROTATED = 208 << 20
#: Copies of what is read, at most.
COPIES = 64
#: Replays of a graph behind one another: to start one takes as long as a kernel.
REPLAYS = 4
#: Mean tokens of the contexts at which decode is measured. Each counts as long as it takes, since what is lost on long
#: contexts is never made good on short ones; but no short one may lose more than ``LOSS``.
CONTEXTS = (256, 1024, 4096)
#: What must be gained over what is in use for a change, and what may be lost at most at any size.
GAIN, LOSS = 0.01, 0.2
#: Tokens of a page, as the Triton backend has them where nobody asks otherwise.
PAGE = 64
COLUMNS = ["rows", "n", "k", "joint", "pairs", "us", "before_us", "library_us", "tb_s", "gain_percent", "best"]

Key = tuned.Linear | tuned.Decode
Choice = tuple[int, ...] | None


class Clock(Protocol):
    """Times what a device does."""

    def __call__(self, run: Callable[[int], object], copies: int) -> float:
        """Seconds of one of ``run(0)`` ... ``run(copies - 1)``, one behind the other. Raises what they raise."""


class GraphClock:
    """By events around replays of a CUDA graph; the best of some."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()
        self._pool = torch.cuda.graph_pool_handle()
        self._last: torch.cuda.CUDAGraph | None = None

    def __call__(self, run: Callable[[int], object], copies: int) -> float:
        torch.cuda.synchronize()
        with torch.cuda.stream(self._stream):
            run(0)
            graph = torch.cuda.CUDAGraph()
            # not by torch's context, which collects garbage each time
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                for number in range(copies):
                    run(number)
            finally:
                graph.capture_end()
            self._last = graph  # the pool lives as long as one of its graphs
            best = float("inf")
            for _ in range(3):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                for _ in range(REPLAYS):
                    graph.replay()
                end.record()
                end.synchronize()
                best = min(best, begin.elapsed_time(end) / 1e3)
        return best / copies / REPLAYS


@dataclass
class Tried:
    """What was measured of one question: seconds by choice, in the order of ``Case.sizes``."""

    seconds: dict[Choice, list[float]] = field(default_factory=dict)
    failed: dict[Choice, str] = field(default_factory=dict)

    def ranked(self) -> list[Choice]:
        """The choices, that with the least time first, the sizes taken together."""
        return sorted(self.seconds, key=lambda one: sum(self.seconds[one]))

    def best(self, before: Choice) -> Choice:
        """The first of the ranked that nowhere loses much to ``before``; that itself where the gain is small."""
        used = self.seconds.get(before)
        if used is None:
            return self.ranked()[0]
        least = (1 - GAIN) * sum(used)
        for one in self.ranked():
            times = self.seconds[one]
            if sum(times) > least:
                break
            if all(t <= (1 + LOSS) * u for t, u in zip(times, used, strict=True)):
                return one
        return before


def questions(facts: ModelFacts, dtype: torch.dtype, most: int) -> list[Key]:
    """What decode steps of up to ``most`` rows ask of the table."""
    kinds = tuple(dict.fromkeys(facts.windows or (None,)))
    with tuned.asking() as asked, listing():
        walk(
            replace(facts, layers=len(kinds), windows=kinds),
            dtype,
            max_num_seqs=most,
            max_model_len=2 * PAGE,
            sizes=[size for size in SIZES if size <= most],
            draws=(Draw.GREEDY,),
        )
    return list(asked)


def choices(key: Key) -> tuple[Choice, list[Choice]]:
    """What is in use, and all that is tried, that one among them. None: the library."""
    if isinstance(key, tuned.Decode):
        return tuple(decode_rule(key.pairs)), [tuple(how) for how in candidates.ways(key)]
    used = tuple(tile_rule(key.rows, key.n, key.k)) if key.rows <= UNMEASURED else None
    return used, [*(tuple(how) for how in candidates.tiles(key)), None]


class Case:
    """One question made ready on ``device``: ``runs[i]`` does what is asked at ``sizes[i]``."""

    sizes: Sequence[int] = (0,)

    def __init__(self, key: Key, facts: ModelFacts, dtype: torch.dtype, device: torch.device):
        self.key, self.facts, self.dtype, self.device = key, facts, dtype, device

    def run(self, size: int, copies: int | None = None) -> tuple[Callable[[int], object], int, int]:
        """What runs at a size, how many copies of what it reads there are, and the bytes that one of them reads."""
        raise NotImplementedError

    def _some(self, *shape: int) -> Tensor:
        """Numbers, whatever they are; random ones on a GPU, whose clock depends on them."""
        made = torch.empty(shape, dtype=self.dtype, device=self.device)
        return made.normal_() if made.is_cuda else made


class LinearCase(Case):
    key: tuned.Linear

    def run(self, size: int, copies: int | None = None) -> tuple[Callable[[int], object], int, int]:
        rows, n, k, joint = self.key
        words = [word for word in joint.split("+") if word]
        act = next((word for word in words if word not in ("norm", "add", "bias")), None)
        read = n * k * self.dtype.itemsize
        copies = copies or max(4, min(COPIES, cdiv(ROTATED, read)))
        x = self._some(rows, k)
        weights = [self._some(n, k) for _ in range(copies)]
        bias = torch.zeros(n, dtype=self.dtype, device=self.device) if "bias" in words else None
        add = torch.zeros(rows, n, dtype=self.dtype, device=self.device) if "add" in words else None
        eps = self.facts.norm_eps if "norm" in words else None
        if eps is not None:  # as a tile of the layer before leaves them
            with_squares(x, torch.full((rows, cdiv(k, 64)), float(min(k, 64)), device=self.device))

        def run(number: int) -> Tensor:
            if add is not None:
                with_squares(add, None)
            y = joined(x, weights[number], bias, eps=eps, act=act, add=add)
            if add is not None:  # the next norm wants them, whoever made y
                squares_of(y)
            return y

        return run, copies, read


class DecodeCase(Case):
    key: tuned.Decode
    sizes = CONTEXTS

    def run(self, size: int, copies: int | None = None) -> tuple[Callable[[int], object], int, int]:
        facts, device, itemsize = self.facts, self.device, self.dtype.itemsize
        heads = facts.kv_heads
        rows = max(1, self.key.pairs // heads)
        lens = spread(rows, size)
        longest = int(lens.max())
        gain = torch.ones(facts.head_dim, dtype=self.dtype, device=device)
        turn = torch.ones(longest + 1, facts.head_dim // 2, device=device)
        layer = LayerAttention(
            name="", q_heads=facts.q_heads, kv_heads=heads, head_dim=facts.head_dim, v_dim=facts.head_dim,
            scale=facts.attention_scale, softcap=facts.attn_softcap, q_norm=gain, k_norm=gain, norm_eps=facts.norm_eps,
            rope=(turn, turn),
        )  # fmt: skip
        spec, backend = layer.spec(itemsize), TritonAttention()
        read = rows * size * spec.token_bytes
        copies = copies or max(2, min(COPIES, cdiv(ROTATED, read)))
        held = cdiv(longest, PAGE)
        pages = 1 + copies * rows * held
        raw = self._some(pages * PAGE * spec.token_bytes // itemsize).view(torch.uint8)
        cache = backend.view(spec, raw, pages, PAGE, self.dtype)
        order = 1 + torch.randperm(pages - 1, device=device).to(torch.int32)
        tables = order.view(copies, rows, held)
        qkv = self._some(rows, sum(layer.sizes))
        last = (lens - 1).to(device)
        which = torch.arange(rows, device=device)
        metas = [
            TritonMeta(
                rows=rows,
                singles=True,
                longer=False,
                positions=last,
                starts=torch.arange(rows + 1, dtype=torch.int64, device=device),
                lens=last + 1,
                slots=table[which, last // PAGE].long() * PAGE + last % PAGE,
                table=table,
            )
            for table in tables
        ]
        return (lambda number: backend.attend(layer, qkv, cache, metas[number])), copies, read


def spread(rows: int, size: int) -> Tensor:
    """Contexts of a batch, int64[rows]: from half of ``size`` to half as much again, in no order."""
    order = torch.randperm(rows, generator=torch.Generator("cpu").manual_seed(0), device="cpu")
    return (size * (0.5 + (order + 0.5) / rows)).round().long().clamp(min=1)


def case(key: Key, facts: ModelFacts, dtype: torch.dtype, device: torch.device) -> Case:
    return (DecodeCase if isinstance(key, tuned.Decode) else LinearCase)(key, facts, dtype, device)


def alone(key: Key, choice: Choice) -> tuned.Table:
    """A table that says this, and nothing else."""
    if isinstance(key, tuned.Decode):
        return tuned.Table(decode={key: choice or ()})
    return tuned.Table(linear={key: choice})


def variants(
    keys: Mapping[Key, Sequence[Choice]] | Sequence[Key], facts: ModelFacts, dtype: torch.dtype
) -> list[Variant]:
    """What has to be compiled to try these choices (of a mere sequence: all that there are), each once."""
    found: dict[Variant, None] = {}
    for key in keys:
        run, _, _ = case(key, facts, dtype, torch.device("cpu")).run(PAGE, copies=1)
        for choice in keys[key] if isinstance(keys, Mapping) else choices(key)[1]:
            with tuned.using(alone(key, choice)), listing() as listed:
                run(0)
            found |= dict.fromkeys(listed)
    return list(found)


def tune(
    keys: Sequence[Key],
    facts: ModelFacts,
    dtype: torch.dtype,
    device: torch.device,
    clock: Clock,
    until: float = float("inf"),
    room: int = 1 << 62,
) -> dict[Key, Tried]:
    """Measure every choice of every question, in their order, until the monotonic clock says ``until``: what is not
    whole then is left out. ``room``: bytes that a measurement may take. A choice that fails is noted."""
    found: dict[Key, Tried] = {}
    for key in keys:
        tried = Tried()
        here = case(key, facts, dtype, device)
        _, every = choices(key)
        for size in here.sizes:
            if isinstance(key, tuned.Decode) and 2 * key.pairs * size * 2 * facts.head_dim * dtype.itemsize > room:
                continue
            run, copies, _ = here.run(size)
            for choice in every:
                if choice in tried.failed:
                    continue
                if time.monotonic() > until:
                    return found
                try:
                    with tuned.using(alone(key, choice)):
                        seconds = clock(run, copies)
                except Exception as error:
                    tried.seconds.pop(choice, None)
                    tried.failed[choice] = f"{type(error).__name__}: {error}"[:200]
                    continue
                tried.seconds.setdefault(choice, []).append(seconds)
            del run
        if tried.seconds:
            found[key] = tried
    return found


def told(
    found: Mapping[Key, Tried],
    facts: ModelFacts,
    dtype: torch.dtype,
    label: str,
    chosen: Mapping[Key, Choice] | None = None,
) -> dict[str, Any]:
    """The table's file: ``kernels.tuned`` reads ``key`` and ``best``, the rest is for people. ``chosen``: what whole
    steps decided, over what was fastest alone, of which ``tb_s`` speaks."""
    linear: list[dict[str, Any]] = []
    decode: list[dict[str, Any]] = []
    for key, tried in found.items():
        before, _ = choices(key)
        fastest = tried.best(before)
        best = (chosen or {}).get(key, fastest)
        times = {one: [round(1e6 * t, 3) for t in seconds] for one, seconds in tried.seconds.items()}
        is_decode = isinstance(key, tuned.Decode)
        one: dict[str, Any] = {
            "key": list(key),
            "best": None if best is None else list(best),
            "before": None if before is None else list(before),
            # alone; what steps alone have tried has none
            "us": times.get(best),
            "fastest_us": times[fastest],
            "before_us": times.get(before),
            "tb_s": [
                round(size / t / 1e12, 3)
                for size, t in zip(_read(key, facts, dtype), tried.seconds[fastest], strict=False)
            ],
            "candidates": [[None if how is None else list(how), each] for how, each in times.items()],
            "failed": [[None if how is None else list(how), why] for how, why in tried.failed.items()],
        }
        if is_decode:
            one["contexts"] = list(CONTEXTS[: len(times[fastest])])
        else:
            one["library_us"] = times.get(None)
        (decode if is_decode else linear).append(one)
    return report.record(model=label, dtype=str(dtype).removeprefix("torch."), linear=linear, decode=decode)


def measured(record: Mapping[str, Any]) -> dict[Key, Tried]:
    """What a record with all its candidates says was measured. Raises ``ConfigError`` where it is none."""
    found: dict[Key, Tried] = {}
    try:
        for name, asked, kind in (("linear", tuned.Linear, Tile), ("decode", tuned.Decode, Decode)):
            for one in record[name]:
                key: Key = asked._make(one["key"])
                found[key] = Tried({_choice(how, kind): list(us) for how, us in one["candidates"]})
    except (LookupError, TypeError, ValueError) as error:
        raise ConfigError(f"no record of what every candidate took: {type(error).__name__}: {error}") from None
    return {
        key: Tried({how: [t / 1e6 for t in times] for how, times in one.seconds.items()}) for key, one in found.items()
    }


def _choice(how: list[Any] | None, kind: type[Tile] | type[Decode]) -> Choice:
    """Of a record, whose bools are numbers too; what older ones do not say is as it was by itself then."""
    return None if how is None else tuple(int(one) for one in kind(*how))


def brief(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record without what lost."""
    return {
        name: [{key: one[key] for key in one if key not in ("candidates", "failed")} for one in value]
        if name in ("linear", "decode")
        else value
        for name, value in record.items()
    }


def _read(key: Key, facts: ModelFacts, dtype: torch.dtype) -> list[int]:
    """Bytes that one run reads, by size."""
    if isinstance(key, tuned.Decode):
        return [key.pairs * size * 2 * facts.head_dim * dtype.itemsize for size in CONTEXTS]
    return [key.n * key.k * dtype.itemsize]


def table(record: Mapping[str, Any]) -> str:
    """The record for a terminal: the fastest alone against what is in use and the library, and what was chosen; of
    decode, means over contexts."""

    def mean(values: Sequence[float] | None) -> float | None:
        return None if not values else sum(values) / len(values)

    lines = []
    for one in [*record["linear"], *record["decode"]]:
        names = tuned.Linear._fields if len(one["key"]) == len(tuned.Linear._fields) else tuned.Decode._fields
        us, before = mean(one["fastest_us"]), mean(one["before_us"])
        lines.append(
            dict(zip(names, one["key"], strict=True))
            | {
                "us": us,
                "before_us": before,
                "library_us": mean(one.get("library_us")),
                "tb_s": mean(one["tb_s"]),
                "gain_percent": None if before is None or us is None else round(100 * (before / us - 1), 1),
                "best": "library" if one["best"] is None else " ".join(map(str, one["best"])),
            }
        )
    return report.table(lines, COLUMNS)
