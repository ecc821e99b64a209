"""`octavo bench throughput | latency | serve | startup`: measure, print a table, keep a record."""

import json
from argparse import SUPPRESS, Namespace
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from octavo.cli import bench_serve, bench_step
from octavo.config.args import EngineArgs
from octavo.config.cli import Parser, add_flags, ask
from octavo.errors import ConfigError, RequestError

COLUMNS = [
    "workload",
    "out_tok_s",
    "out_tok_s_median",
    "in_tok_s",
    "in_tok_s_median",
    "seconds",
    "median_seconds",
    "first_seconds",
    "step_ms",
    "plan_us_per_step",
    "host_us_per_step",
    "percent_of_limit",
    "idle_percent",
    "peak_rss_mb",
    "start_s",
]

#: Flag -> the least that it may be.
LEAST = {
    **dict.fromkeys(("repeats", "num_iters", "num_prompts", "max_concurrency", "batch_size", "processes"), 1),
    **dict.fromkeys(("input_len", "output_len", "random_input_len", "random_output_len", "random_vocab_size"), 1),
    **dict.fromkeys(("num_iters_warmup", "num_warmups", "random_prefix_len", "temperature", "functions", "step_ms"), 0),
    **dict.fromkeys(("connections", "rounds", "walks", "tokens", "flood", "api_server_count", "forced", "pairs"), 1),
}
#: What `octavo bench grammar` measures -> the flags that are about it; of forced text also those of an engine.
GRAMMAR = {"masks": ("backend", "walks", "tokens"), "flood": ("backend", "tokens", "step_ms"), "forced": ("pairs",)}


def parser() -> Parser:
    main = Parser(prog="octavo bench", description=__doc__)
    kinds = main.add_subparsers(dest="kind", metavar="KIND", required=True, parser_class=Parser)

    throughput = kinds.add_parser("throughput", help="offline workloads, each in a process of its own")
    throughput.add_argument("--workload", nargs="+", help="names, or cpu, gpu, all (cpu)")
    own = throughput.add_argument_group("a workload of fixed lengths, instead of --workload")
    own.add_argument("--input-len", "--random-input-len", dest="input_len", type=int, help="prompt tokens")
    own.add_argument("--output-len", "--random-output-len", dest="output_len", type=int, help="tokens to make")
    own.add_argument("--num-prompts", type=int, help="requests (1000)")
    # Scripts for vLLM say what is so here anyway.
    throughput.add_argument("--dataset-name", choices=("random",), metavar="dataset", help=SUPPRESS)
    throughput.add_argument("--backend", choices=("vllm",), metavar="backend", help=SUPPRESS)
    throughput.add_argument("--repeats", type=int, default=3, help="runs of each; the best and the median count (3)")
    throughput.add_argument(
        "--one-engine", action="store_true", help="all workloads in one engine: a start less for each"
    )
    throughput.add_argument(
        "--structured",
        choices=("json", "compact"),
        help="each workload twice in one engine: free, and with answers in JSON, or in JSON without spaces",
    )
    throughput.add_argument("--list", action="store_true", help="print the workloads and what they are")

    latency = kinds.add_parser("latency", help="seconds for one batch, as percentiles")
    latency.add_argument("--input-len", type=int, default=32, help="prompt tokens (32)")
    latency.add_argument("--output-len", type=int, default=128, help="tokens to make (128)")
    latency.add_argument("--batch-size", type=int, default=8, help="requests at once (8)")
    latency.add_argument("--num-iters-warmup", type=int, default=2, help="runs that do not count (2)")
    latency.add_argument("--num-iters", type=int, default=10, help="runs that count (10)")

    startup = kinds.add_parser("startup", help="seconds from process start to the first token")
    startup.add_argument("--repeats", type=int, default=3, help="processes (3)")
    startup.add_argument("--served", action="store_true", help="of `octavo serve`, to the first token over HTTP")

    step = bench_step.add(kinds)

    for one in (throughput, latency, startup, step):
        one.add_argument("--model", metavar="MODEL", help="directory, GGUF file or hub name (the embedded model)")
        add_flags(one, EngineArgs, skip=("model", "disable_log_stats"))

    serve = bench_serve.add(kinds)

    front = kinds.add_parser("front", help="what the server alone can carry: a device that costs nothing")
    front.add_argument("--connections", type=int, default=256, help="streams at once (256)")
    front.add_argument("--rounds", type=int, default=2, help="requests on each, one after another (2)")
    front.add_argument("--output-len", type=int, default=512, help="tokens of each (512)")
    front.add_argument("--step-ms", type=float, nargs="+", default=[0.0], help="milliseconds a step of the device (0)")
    front.add_argument("--api-server-count", "-asc", type=int, default=1, help="API processes of the server (1)")
    front.add_argument("--chat", action="store_true", help="use the chat route")
    front.add_argument("--output-json", metavar="FILE", help="append the records as JSON lines")

    host = kinds.add_parser("host", help="microseconds of host a decode step: a device that costs nothing")
    sizes = "requests at once (1 32 256)"
    host.add_argument("--batch-size", dest="sizes", type=int, nargs="+", default=[1, 32, 256], metavar="N", help=sizes)
    host.add_argument("--output-len", type=int, default=512, help="tokens of each (512)")
    host.add_argument("--stream", action="store_true", help="clients hear of every token, not only of the end")
    host.add_argument("--repeats", type=int, default=3, help="runs of each; the least counts (3)")
    host.add_argument("--functions", type=int, default=0, help="so many, by their own time under a profiler (0)")
    host.add_argument("--output-json", metavar="FILE", help="append the records as JSON lines")

    pressure = kinds.add_parser("pressure", help="what a full KV cache costs: preemption")
    pressure.add_argument("--num-prompts", type=int, default=512, help="requests (512)")
    pressure.add_argument(
        "--output-len", type=int, nargs=2, default=[512, 2048], metavar=("LEAST", "MOST"),
        help="tokens of an answer, drawn between these (512 2048)",
    )  # fmt: skip
    pressure.add_argument(
        "--shares", type=float, nargs="+", default=[0.9, 0.8, 0.6], metavar="SHARE",
        help="caches, as shares of what all that run would hold (0.9 0.8 0.6)",
    )  # fmt: skip
    pressure.add_argument("--repeats", type=int, default=1, help="runs of each; the best counts (1)")
    pressure.add_argument(
        "--model", metavar="MODEL", help="directory, GGUF file or hub name (none: a fake device, whose time is counted)"
    )
    add_flags(pressure, EngineArgs, skip=("model", "disable_log_stats"))

    parsers = kinds.add_parser("parsers", help="64 kB of one argument through every chat format's parser")
    parsers.add_argument("--repeats", type=int, default=3, help="runs of each (3)")
    parsers.add_argument("--output-json", metavar="FILE", help="append the records as JSON lines")

    soak = kinds.add_parser("soak", help="many short requests, some given up, and faults; what is left afterwards")
    soak.add_argument("--num-prompts", type=int, default=100_000, help="requests (100000)")
    soak.add_argument("--connections", type=int, default=64, help="connections (64)")
    soak.add_argument("--api-server-count", "-asc", type=int, default=1, help="API processes of the server (1)")
    soak.add_argument("--faults", action="store_true", help="malformed bodies, silent clients, killed processes")
    soak.add_argument("--output-json", metavar="FILE", help="append the records as JSON lines")

    grammar = kinds.add_parser("grammar", help="microseconds a mask of structured output, and time to the first")
    grammar.add_argument("--model", metavar="MODEL", help="whose tokenizer (the embedded model)")
    grammar.add_argument("--backend", choices=("guidance", "xgrammar"), help="library (guidance)")
    grammar.add_argument("--walks", type=int, help="random answers of each schema (4)")
    grammar.add_argument("--tokens", type=int, help="tokens of each at most (64; of a flood's 16)")
    grammar.add_argument(
        "--flood",
        type=int,
        metavar="N",
        help="instead: gaps between a neighbour's tokens, without and with N hostile ones",
    )
    grammar.add_argument("--step-ms", type=float, help="milliseconds a step of --flood's device (5)")
    grammar.add_argument(
        "--forced",
        type=int,
        nargs="*",
        metavar="ROWS",
        help="instead: a model's answers to agents, with and without drafts of what is forced, so many at once (1 8)",
    )
    grammar.add_argument("--pairs", type=int, help="runs of --forced, each with and without (7)")
    add_flags(grammar, EngineArgs, skip=("model", "disable_log_stats"))
    grammar.add_argument("--output-json", metavar="FILE", help="append the records as JSON lines")

    for one in (throughput, latency, startup, step, pressure, serve):
        seed = ("--seed-prompts", "--seed") if one is serve else ("--seed-prompts",)  # the others' engines have one
        one.add_argument(*seed, type=int, default=0, help="seed of prompts and lengths (0)")
        one.add_argument("--output-json", metavar="FILE", help="append the records as JSON lines")
        one.add_argument("--label", help="name of the model in the records (its own)")
    return main


def main(argv: Sequence[str]) -> int:
    """Run a benchmark; the exit status, 1 where requests failed. Raises ``ConfigError`` for what cannot be run."""
    args = parser().parse_args(argv)
    kinds = (_throughput, _latency, _startup, _step, _serve, _front, _host, _pressure, _soak, _grammar, _parsers)
    run = {kind.__name__[1:]: kind for kind in kinds}[args.kind]
    from octavo.bench import report

    for name, least in LEAST.items():
        given = getattr(args, name, None)
        value = min(given, default=None) if isinstance(given, list) else given
        if value is not None and not value >= least:  # nor what is no number
            raise ConfigError(f"--{name.replace('_', '-')} must be at least {least}, got {value:g}")
    report.write([], args.output_json)  # a file that cannot be written to is told before the work, not after it
    try:
        records = run(args)
    except RequestError as error:
        raise ConfigError(f"the workload does not fit the engine: {error}") from None
    report.write(records, args.output_json)
    return 1 if any(one.get("failed") for one in records) else 0


def _engine(args: Namespace) -> tuple[dict[str, Any], str]:
    """Keyword arguments of ``LLM`` that were said, and the model's label."""
    said = _said(args)
    label = args.label or (said.get("model") or "embedded").rstrip("/").rpartition("/")[2]
    return said, label


def _said(args: Namespace) -> dict[str, Any]:
    asked = ask(EngineArgs, args)
    return {f.name: getattr(asked, f.name) for f in fields(asked) if getattr(asked, f.name) is not None}


def _throughput(args: Namespace) -> list[dict[str, Any]]:
    from dataclasses import replace

    from octavo.bench import offline, report, workloads

    if args.list:
        print(report.table([vars(one) for one in workloads.WORKLOADS.values()], ["name", "about", "temperature"]))
        return []
    engine, label = _engine(args)
    works = [replace(work, seed=args.seed_prompts) for work in _workloads(args)]
    records = []
    groups = [[work] for work in works]
    if args.structured:
        groups = [
            [work, replace(work, name=f"{work.name}-{args.structured}", structured=args.structured)] for work in works
        ]
    if args.one_engine:
        groups = [[work for group in groups for work in group]]
    for group in groups:
        found = offline.throughput(group, engine, args.repeats, label)
        print("\n".join(json.dumps(one) for one in found), flush=True)
        records += found
    print(report.machine())
    print(report.table(records, COLUMNS))
    return records


def _workloads(args: Namespace) -> Sequence[Any]:
    from octavo.bench import workloads

    if args.input_len is args.output_len is args.num_prompts is None:
        return workloads.pick(args.workload or ["cpu"])
    if args.workload:
        raise ConfigError("--workload names its own lengths: leave --input-len, --output-len and --num-prompts out")
    if args.input_len is None or args.output_len is None:
        raise ConfigError("a workload of fixed lengths needs both of --input-len and --output-len")
    return [workloads.fixed(args.num_prompts or 1000, args.input_len, args.output_len)]


def _latency(args: Namespace) -> list[dict[str, Any]]:
    from octavo.bench import offline, workloads

    engine, label = _engine(args)
    work = workloads.Workload(
        name="latency",
        about=f"{args.batch_size} at once, {args.input_len} in, {args.output_len} out",
        requests=args.batch_size,
        inputs=(args.input_len, args.input_len),
        outputs=(args.output_len, args.output_len),
        running=args.batch_size,
        seed=args.seed_prompts,
    )
    record = offline.latency(work, engine, args.num_iters_warmup, args.num_iters, label)
    print(f"Avg latency: {record['avg_latency']:.4f} seconds")
    for q, seconds in record["percentiles"].items():
        print(f"{q}% percentile latency: {seconds:.4f} seconds")
    return [record]


def _startup(args: Namespace) -> list[dict[str, Any]]:
    from octavo.bench import report
    from octavo.bench.startup import served, startup

    engine, label = _engine(args)
    record = (served if args.served else startup)(engine, args.repeats, label)
    print(report.table([record], COLUMNS))
    for group in ("phases", "boot"):
        for name, seconds in record.get(group, {}).items():
            print(f"{group:>7} {name:<20} {seconds:8.3f} s")
    return [record]


def _step(args: Namespace) -> list[dict[str, Any]]:
    engine, label = _engine(args)
    return bench_step.run(args, engine, label)


def _serve(args: Namespace) -> list[dict[str, Any]]:
    return bench_serve.run(args)


def _front(args: Namespace) -> list[dict[str, Any]]:
    from octavo.bench import report
    from octavo.bench.front import COLUMNS as columns
    from octavo.bench.front import FrontLoad, front

    records = []
    for step_ms in args.step_ms:
        load = FrontLoad(
            connections=args.connections,
            rounds=args.rounds,
            outputs=args.output_len,
            step_ms=step_ms,
            chat=args.chat,
            apis=args.api_server_count,
        )
        records.append(front(load))
    print(report.table(records, columns))
    return records


def _host(args: Namespace) -> list[dict[str, Any]]:
    from octavo.bench import report
    from octavo.bench.host import COLUMNS as columns
    from octavo.bench.host import HostLoad, host

    if min(args.sizes) < 1:
        raise ConfigError(f"--batch-size must be at least 1, got {min(args.sizes)}")
    shared = {
        "outputs": args.output_len, "stream": args.stream, "repeats": args.repeats, "top": args.functions
    }  # fmt: skip
    records = [host(HostLoad(rows=rows, **shared)) for rows in args.sizes]
    print(report.table(records, columns))
    for one in records:
        for name, us in one.get("functions", {}).items():
            print(f"{one['workload']:>32}  {us:8.1f}  {name}")
    return records


def _pressure(args: Namespace) -> list[dict[str, Any]]:
    from octavo.bench import report
    from octavo.bench.pressure import COLUMNS as columns
    from octavo.bench.pressure import PressureLoad, growing, pressure

    if not all(0 < share <= 1 for share in args.shares):
        raise ConfigError(f"--shares must be over 0 and at most 1, got {' '.join(map(str, args.shares))}")
    least, most = args.output_len
    if least > most:
        raise ConfigError(f"--output-len is the least and the most, got {least} {most}")
    engine, label = _engine(args)
    if args.model is None:
        if engine:
            raise ConfigError(
                f"--{next(iter(engine)).replace('_', '-')} says how a model is run; name one with --model"
            )
        label = args.label or PressureLoad.label
    load = PressureLoad(
        work=growing(args.num_prompts, args.seed_prompts, (least, most)),
        shares=args.shares,
        engine=None if args.model is None else engine,
        label=label,
        repeats=args.repeats,
    )
    records = []
    for one in pressure(load):
        print(json.dumps(one), flush=True)
        records.append(one)
    print(report.table(records, columns))
    return records


def _soak(args: Namespace) -> list[dict[str, Any]]:
    from octavo.bench import report
    from octavo.bench.soak import COLUMNS as columns
    from octavo.bench.soak import SoakLoad, soak

    load = SoakLoad(
        requests=args.num_prompts, connections=args.connections, apis=args.api_server_count, faults=args.faults
    )
    record = soak(load)
    print(report.table([record], columns))
    return [record]


def _grammar(args: Namespace) -> list[dict[str, Any]]:
    from octavo.bench import report
    from octavo.bench.grammar import COLUMNS as columns
    from octavo.bench.grammar import GrammarLoad, grammar

    engine = _said(args)
    what, given = _grammar_flags(args, [name for name in engine if name != "model"])
    if what == "forced":
        from octavo.bench.forced import COLUMNS as columns
        from octavo.bench.forced import ForcedLoad, forced

        records = forced(ForcedLoad(rows=args.forced or ForcedLoad.rows, engine=engine, **given))
    else:
        if what == "flood":
            from octavo.bench.flood import COLUMNS as columns
        records = grammar(GrammarLoad(model=engine.get("model"), flood=args.flood or 0, **given))
    print("\n".join(json.dumps(one) for one in records))
    print(report.table(records, columns))
    return records


def _grammar_flags(args: Namespace, engine: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """What to measure, of ``GRAMMAR``, and the flags about it that were said. Raises ``ConfigError`` for others, also
    those of an ``engine`` where there is none."""
    if args.forced is not None and args.flood is not None:
        raise ConfigError("--forced and --flood are two measurements: leave one out")
    what = "forced" if args.forced is not None else "flood" if args.flood is not None else "masks"
    owners = {name: owner for owner, names in GRAMMAR.items() for name in names}
    said = {name: value for name in owners if (value := getattr(args, name)) is not None}
    for name in [*said, *engine]:
        if name in GRAMMAR[what] or (what == "forced" and name in engine):
            continue
        flag = f"--{name.replace('_', '-')}"
        if what != "masks":
            raise ConfigError(f"{flag} says nothing about --{what}: leave it out")
        raise ConfigError(f"{flag} is about --{owners.get(name, 'forced')}: ask for that too")
    return what, said


def _parsers(args: Namespace) -> list[dict[str, Any]]:
    from octavo.bench import report
    from octavo.bench.parsers import COLUMNS as columns
    from octavo.bench.parsers import parsers

    records = parsers(args.repeats)
    print(report.table(records, columns))
    return records
