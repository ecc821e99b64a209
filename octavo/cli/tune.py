"""`octavo tune`: find the fastest kernels for a model on this GPU, and have later starts use them."""

import argparse
import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.common import probe
from octavo.config.cli import Parser, add_model, one_model
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.bench.tune import Key


def parser() -> Parser:
    found = Parser(prog="octavo tune", usage="octavo tune MODEL [flags]", description=__doc__)
    add_model(found)
    found.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16", help="of weights (bfloat16)")
    found.add_argument("--max-num-seqs", type=int, default=256, help="rows of the largest decode step (256)")
    found.add_argument(
        "--rows", type=int, nargs="+", metavar="N", help="of decode steps, those alone (all that there are)"
    )
    found.add_argument("--seconds", type=float, default=170.0, help="stop after so long, compiling included (170)")
    found.add_argument("--output", metavar="FILE", help="write the table there (where starts find it)")
    found.add_argument(
        "--whole-steps", action="store_true", help="try the fastest of each again in whole steps, which takes longer"
    )
    found.add_argument(
        "--from",
        dest="source",
        metavar="FILE",
        help="measure nothing alone: such details say it. Without --whole-steps no GPU is needed",
    )
    found.add_argument(
        "--only", choices=("linear", "decode"), help="measure products alone, or attention; the rest stays as it is"
    )
    found.add_argument("--details", metavar="FILE", help="write there what every candidate took")
    return found


def main(argv: Sequence[str]) -> int:
    """Measure; the exit status. Raises ``ConfigError`` where nothing can be measured."""
    words = parser()
    args = words.parse_args(argv)
    one_model(words, args)
    if not 1 <= args.max_num_seqs <= 512:
        raise ConfigError(f"--max-num-seqs must be from 1 to 512, got {args.max_num_seqs}")
    if not args.seconds >= 0:  # nor what is no number
        raise ConfigError(f"--seconds must be at least 0, got {args.seconds:g}")
    if any(not 1 <= rows <= 512 for rows in args.rows or ()):
        raise ConfigError(f"--rows must be from 1 to 512, got {' '.join(map(str, args.rows))}")
    old = _record(args.source) if args.source else {}
    if old and not args.whole_steps:
        return _again(args, old)
    gpus = probe.gpus()
    if not gpus:
        raise ConfigError("what is measured is a GPU, and none is here that torch can use")
    begun = time.monotonic()
    import torch

    from octavo.bench import refine, tune
    from octavo.config.checkpoint import locate
    from octavo.device.kernels import tuned
    from octavo.device.kernels.variants import Variant
    from octavo.device.kernels.warm import Warming

    facts = locate(args.model, load_format="dummy").facts
    dtype, device = getattr(torch, args.dtype), torch.device("cuda", 0)
    label = (args.model or "embedded").rstrip("/").rpartition("/")[2]

    def compile_all(variants: Sequence[Variant]) -> None:
        warming = Warming(gpus[0].capability)
        try:
            warming.add(variants)
            warming.seal()
            warming.wait()
            print(warming.told(), flush=True)
        finally:
            warming.close()

    every = tune.questions(facts, dtype, args.max_num_seqs)
    keys = _asked(args, facts.kv_heads, every)
    if old:
        if old.get("dtype") != args.dtype:
            raise ConfigError(f"--from {args.source}: it is of {old.get('dtype')}, and --dtype says {args.dtype}")
        found = tune.measured(old)
        if not any(key in found for key in keys):
            raise ConfigError(f"--from {args.source}: it says nothing of what steps of {label} ask")
    else:
        needed = tune.variants(keys, facts, dtype)
        print(f"{len(keys)} questions, {len(needed)} kernels to compile", flush=True)
        compile_all(needed)
        with torch.inference_mode():
            room = torch.cuda.mem_get_info(device)[0] // 2
            found = tune.tune(keys, facts, dtype, device, tune.GraphClock(), begun + args.seconds, room)
            torch.cuda.empty_cache()
    answered = {key: found[key] for key in keys if key in found}
    path = Path(args.output or tuned.folder() / f"{tuned.slug(gpus[0].name)}--{tuned.slug(label)}.json")
    record = tune.told(answered, facts, dtype, label)
    if args.whole_steps:
        if not old:
            _write(path, record)  # whatever comes of the second half
        tried = {key: refine.finalists(found)[key] for key in answered}
        compile_all(tune.variants(refine.all_tried(tried), facts, dtype))
        with refine.Steps(args.model, facts, dtype, args.max_num_seqs) as steps:
            refined = refine.refine(
                tried,
                facts.kv_heads,
                steps,
                tuned.load(gpus[0].name),
                lambda: time.monotonic() > begun + args.seconds,
                lambda line: print(line, flush=True),
            )
        record = tune.told(answered, facts, dtype, label, refined.chosen)
        record["steps"] = refine.told(refined, steps.layers)
    if old:
        record["measured"] = old.get("measured", old.get("commit"))
    record["seconds"] = round(time.monotonic() - begun, 1)
    if args.details:
        tuned.write(Path(args.details), record)
    _write(path, record)
    print(tune.table(record))
    if args.whole_steps:
        print(refine.shown(record["steps"]))
    left = len(keys) - len(answered)
    print(f"{path}: {len(answered)} of {len(keys)} questions in {record['seconds']} s")
    if left:
        print(f"{left} were not reached: --seconds says how long it may take")
    return 0


def _asked(args: argparse.Namespace, kv_heads: int, keys: "Iterable[Key]") -> "list[Key]":
    """Those of ``keys`` that ``--only`` and ``--rows`` leave. Raises ``ConfigError`` where none is left."""
    from octavo.common.math import next_power_of_two
    from octavo.device.kernels import tuned
    from octavo.device.runner.decode import padded

    sizes = [padded(rows) for rows in args.rows or ()]
    buckets = {tuned.bucket(size) for size in sizes}
    pairs = {next_power_of_two(size * kv_heads) for size in sizes}
    kinds = {"linear": tuned.Linear, "decode": tuned.Decode}
    found = [
        key
        for key in keys
        if (args.only is None or isinstance(key, kinds[args.only]))
        and (not sizes or (key.rows in buckets if isinstance(key, tuned.Linear) else key.pairs in pairs))
    ]
    if not found:
        raise ConfigError("nothing is asked by steps of such sizes (--rows, --max-num-seqs)")
    return found


def _write(path: Path, record: dict[str, Any]) -> None:
    """The table, with what it says already of other questions."""
    from octavo.bench import tune
    from octavo.device.kernels import tuned

    made = tune.brief(record)
    try:
        before = json.loads(path.read_text())
        for kind in ("linear", "decode"):
            new = {tuple(one["key"]) for one in made[kind]}
            made[kind] = [*(one for one in before[kind] if tuple(one["key"]) not in new), *made[kind]]
    except (OSError, ValueError, LookupError, TypeError):  # there is none, or it makes no sense to anybody
        made = tune.brief(record)
    tuned.write(path, made)


def _record(source: str) -> dict[str, Any]:
    """A file of details."""
    try:
        old = json.loads(Path(source).read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"--from {source}: {error}") from None
    if not isinstance(old, dict) or not old:
        raise ConfigError(f"--from {source}: no record of a tuning")
    return old


def _again(args: argparse.Namespace, old: dict[str, Any]) -> int:
    """The table of an earlier measurement, by the rule of today."""
    import torch

    from octavo.bench import tune
    from octavo.config.checkpoint import locate
    from octavo.device.kernels import tuned

    facts = locate(args.model, load_format="dummy").facts
    dtype = getattr(torch, str(old.get("dtype")), None)
    if not isinstance(dtype, torch.dtype):
        raise ConfigError(f"--from {args.source}: no record of a tuning")
    found = tune.measured(old)
    answered = {key: found[key] for key in _asked(args, facts.kv_heads, found)}
    record = tune.told(answered, facts, dtype, str(old.get("model")))
    record |= {name: old.get(name) for name in ("gpu", "machine", "date", "seconds")} | {"measured": old.get("commit")}
    path = Path(
        args.output or tuned.folder() / f"{tuned.slug(str(old.get('gpu')))}--{tuned.slug(record['model'])}.json"
    )
    _write(path, record)
    print(tune.table(record))
    print(path)
    return 0
