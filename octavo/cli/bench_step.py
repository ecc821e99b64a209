"""`octavo bench step`: its flags, and what it prints."""

import json
from argparse import Namespace
from dataclasses import replace
from typing import Any

from octavo.config.cli import Parser
from octavo.errors import ConfigError

#: What is run where --trace names no workload.
TRACED = "c8"


def add(kinds: Any) -> Parser:
    """Its parser."""
    found: Parser = kinds.add_parser("step", help="a decode step alone: its graphs' time, and its kernels")
    found.add_argument("--rows", type=int, nargs="+", default=[1, 8], help="rows of the steps (1 8)")
    found.add_argument("--context", type=int, nargs="+", default=[256], help="tokens before each (256)")
    found.add_argument("--steps", type=int, default=50, help="steps of each measurement (50)")
    found.add_argument("--temperature", type=float, default=0.6, help="of the draws; 0: the likeliest (0.6)")
    found.add_argument(
        "--trace", nargs="?", const=TRACED, metavar="WORKLOAD", help=f"profile a run instead ({TRACED}); see throughput"
    )
    found.add_argument("--trace-steps", type=int, default=20, help="steps that are profiled (20)")
    return found


def run(args: Namespace, engine: dict[str, Any], label: str) -> list[dict[str, Any]]:
    """Measure, print, and give the records."""
    if min(*args.rows, *args.context, args.steps, args.trace_steps) < 1:
        raise ConfigError("--rows, --context, --steps and --trace-steps must be at least 1")
    if args.temperature < 0:
        raise ConfigError(f"--temperature must be at least 0, got {args.temperature:g}")
    from octavo.bench import report, step

    if args.trace is None:
        records = step.measure(engine, args.rows, args.context, args.temperature, label, args.steps)
        lines = list(step.shown(records))
    else:
        from octavo.bench import trace, workloads

        (work,) = workloads.pick([args.trace])
        work = replace(work, seed=args.seed_prompts)
        records = [trace.trace(work, engine, args.trace_steps, label)]
        lines = list(trace.shown(records[0], step.KERNELS, step.LINES))
    print("\n".join(json.dumps(one) for one in records))
    print(report.machine())
    print("\n".join(lines))
    return records
