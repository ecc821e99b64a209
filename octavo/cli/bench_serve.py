"""`octavo bench serve`: its flags, and what becomes of them."""

import json
import math
import time
from argparse import SUPPRESS, Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

from octavo.common import probe
from octavo.common.client import add_tls_flags, identity
from octavo.config import env
from octavo.config.cli import Parser
from octavo.errors import ConfigError

#: Requests at once where neither they nor a rate are said.
CONCURRENCY = 32
_BACKENDS = ("openai", "openai-chat", "vllm")
_MOST_POINTS = 64
#: A client process that computes for this share of its time is late for what the server says.
BUSY = 0.7


def add(kinds: Any) -> Parser:
    """Add the subcommand to ``kinds``."""
    serve = kinds.add_parser("serve", help="load on a running OpenAI-compatible server")
    where = serve.add_argument_group("server")
    where.add_argument("--base-url", help="the server (http://127.0.0.1:8000)")
    where.add_argument("--host", help="its address, instead of --base-url (127.0.0.1)")
    where.add_argument("--port", type=int, help="its port, with --host (8000)")
    where.add_argument("--endpoint", help="path of the route (that of the backend)")
    where.add_argument("--backend", choices=_BACKENDS, default="openai", help="route and form of a request (openai)")
    where.add_argument("--chat", action="store_true", help="the same as --backend openai-chat")
    where.add_argument("--model", help="name for the server (its first model)")
    where.add_argument("--api-key", help="key for the server (OCTAVO_API_KEY)")
    add_tls_flags(where)
    where.add_argument("--header", nargs="+", default=[], metavar="NAME=VALUE", help="headers of each request")
    load = serve.add_argument_group("load")
    load.add_argument(
        "--workload",
        nargs="+",
        metavar="NAME",
        help="s1 s8 s32 s64 s256: so many at once, 512 in, 128 out; served: all",
    )
    load.add_argument("--num-prompts", type=int, default=128, help="requests (128)")
    load.add_argument("--max-concurrency", type=int, help=f"most requests at once ({CONCURRENCY}; with a rate: any)")
    load.add_argument("--request-rate", type=float, default=math.inf, help="requests a second (inf: no pause)")
    load.add_argument("--burstiness", type=float, default=1.0, help="under 1 in bursts, over 1 evener (1: Poisson)")
    load.add_argument("--random-input-len", "--input-len", type=int, default=512, help="prompt tokens (512)")
    load.add_argument("--random-output-len", "--output-len", type=int, default=128, help="tokens to make (128)")
    load.add_argument("--random-prefix-len", type=int, default=0, help="prompt tokens before them that all share (0)")
    load.add_argument("--random-range-ratio", type=float, default=0.0, help="lengths vary by this share (0)")
    load.add_argument("--random-vocab-size", type=int, default=20_000, help="ids of prompts lie under it (20000)")
    load.add_argument("--temperature", type=float, default=0.6, help="of sampling (0.6)")
    load.add_argument("--extra-body", metavar="JSON", help="more fields of each request")
    load.add_argument("--num-warmups", type=int, default=0, help="requests before, which do not count (0)")
    load.add_argument("--processes", type=int, help="client processes (half the cores, from 4 to 8)")
    # Scripts for vLLM say what is so here anyway.
    load.add_argument("--dataset-name", choices=("random",), metavar="dataset", help=SUPPRESS)
    load.add_argument("--ignore-eos", action="store_true", help=SUPPRESS)
    told = serve.add_argument_group("result")
    told.add_argument(
        "--percentile-metrics", default="ttft,tpot,itl,e2el", metavar="LIST", help="metrics to print (all)"
    )
    told.add_argument("--metric-percentiles", default="99", metavar="LIST", help="percentiles to print, as 50,99 (99)")
    told.add_argument("--goodput", nargs="+", default=[], metavar="METRIC:MS", help="what a good request stays within")
    told.add_argument("--save-result", action="store_true", help="write the figures as JSON, under vLLM's names")
    told.add_argument("--save-detailed", action="store_true", help="with the figures of each request")
    told.add_argument("--result-dir", metavar="FOLDER", help="where to (here)")
    told.add_argument("--result-filename", metavar="FILE", help="its name (from backend, load, model and time)")
    told.add_argument("--metadata", nargs="+", default=[], metavar="NAME=VALUE", help="what else to write into it")
    told.add_argument("--sweep", metavar="LIST", help="one run for each of these concurrencies, as 1,2,4,8")
    told.add_argument("--sweep-rate", metavar="LIST", help="one run for each of these request rates")
    told.add_argument("--plot", metavar="FILE", help="draw throughput against latency into a .svg or .png")
    return serve


def run(args: Namespace) -> list[dict[str, Any]]:
    """The records, one a point of the sweep. Raises ``ConfigError`` for what cannot be run."""
    from octavo.bench import plot, report, result
    from octavo.bench.serving import models, serve, speculation

    metrics, quantiles = result.metric_names(args.percentile_metrics), result.percentiles(args.metric_percentiles)
    goal, metadata = result.goals(args.goodput), _pairs(args.metadata, "--metadata")
    picture = plot.check(args.plot) if args.plot else None
    key = args.api_key or env.read("OCTAVO_API_KEY")
    load = _load(args, key)
    works = _workloads(args)
    points = [(work.about, _served(work)) for work in works] or _points(args)
    load = replace(load, model=args.model or models(load.url, key, load.who)[0])
    records, saved = [], []
    for at, (label, change) in enumerate(points):
        # Other prompts for each, or the server's prefix cache would know them.
        now = replace(load, seed=load.seed + at, **change)
        if len(points) > 1:
            print(f"\n{label}")
        before = speculation(now)
        answers, seconds, busiest = serve(now)
        grown = {name: value - before.get(name, 0.0) for name, value in speculation(now).items()}
        record = result.summary(now, answers, seconds, quantiles=quantiles, goal=goal, drafted=grown)
        if works:
            record["workload"] = works[at].name
        record["client_busy"] = round(busiest, 2)
        if busiest > BUSY:
            print(f"the clients may be what was measured: one computed for {busiest:.0%} of the time (--processes)")
        print(result.block(record, metrics, quantiles), flush=True)
        records.append(record)
        saved.append(result.saved(now, record, answers, metadata, args.save_detailed))
    if len(points) > 1:
        columns = ["max_concurrency", "request_rate", "request_throughput", "out_tok_s"]
        print("\n" + report.table(records, [*columns, *(f"p{q}_{name}_ms" for name in plot.PANELS for q in (50, 99))]))
    if args.save_result or args.save_detailed:
        path = Path(args.result_dir or ".") / (args.result_filename or _name(load, points))
        result.write(path, saved)
        print(f"saved as {path}")
    if picture is not None:
        plot.draw(picture, records, [label.rpartition(" ")[2] for label, _ in points], _title(load, args))
        print(f"drawn as {picture}")
    return records


def _load(args: Namespace, key: str | None) -> Any:
    from octavo.bench.serving import Load

    if args.base_url and (args.host or args.port):
        raise ConfigError("--base-url names the server whole: leave --host and --port out")
    if not 0 <= args.random_range_ratio < 1:
        raise ConfigError(f"--random-range-ratio must be from 0 to under 1, got {args.random_range_ratio:g}")
    if not 0 < args.burstiness < math.inf:
        raise ConfigError(f"--burstiness must be over 0, got {args.burstiness:g}")
    rate = 0.0 if args.request_rate == math.inf else args.request_rate
    if not 0 <= rate < math.inf:
        raise ConfigError(f"--request-rate must be at least 0, got {rate:g}")
    try:
        extra = json.loads(args.extra_body or "{}")
    except ValueError as error:
        raise ConfigError(f"--extra-body is not valid JSON: {error}") from None
    if not isinstance(extra, dict):
        raise ConfigError("--extra-body must be a JSON object")
    scheme = "https" if args.ssl_ca_certs or args.ssl_certfile or args.ssl_keyfile else "http"
    url = args.base_url or f"{scheme}://{args.host or '127.0.0.1'}:{args.port or 8000}"
    return Load(
        url=url,
        model=args.model or "",
        label=args.label,
        requests=args.num_prompts,
        concurrency=args.max_concurrency or (None if rate else CONCURRENCY),
        inputs=args.random_input_len,
        outputs=args.random_output_len,
        prefix=args.random_prefix_len,
        spread=args.random_range_ratio,
        vocabulary=args.random_vocab_size,
        rate=rate,
        burstiness=args.burstiness,
        temperature=args.temperature,
        seed=args.seed_prompts,
        processes=args.processes or max(4, min(8, probe.cores() // 2)),
        warmups=args.num_warmups,
        key=key,
        who=identity(args, url, env.read("OCTAVO_SSL_KEYFILE_PASSWORD")),
        chat=args.chat or args.backend == "openai-chat",
        endpoint=args.endpoint,
        headers=_pairs(args.header, "--header"),
        extra=extra,
    )


def _points(args: Namespace) -> list[tuple[str, dict[str, Any]]]:
    """(name, what is changed of the load) of each run."""
    if args.sweep and args.sweep_rate:
        raise ConfigError("sweep over concurrencies or over rates, not over both: --sweep or --sweep-rate")
    try:
        many = [int(one) for one in args.sweep.split(",")] if args.sweep else []
        rates = [float(one) for one in args.sweep_rate.split(",")] if args.sweep_rate else []
    except ValueError:
        raise ConfigError("--sweep and --sweep-rate take numbers with commas, as 1,2,4,8") from None
    if not all(0 < one < math.inf for one in (*many, *rates)) or len(many) + len(rates) > _MOST_POINTS:
        raise ConfigError(f"--sweep and --sweep-rate take numbers over 0, at most {_MOST_POINTS} of them")
    if rates:
        cap = args.max_concurrency
        return [(f"request rate {rate:g}", {"rate": rate, "concurrency": cap}) for rate in rates]
    return [(f"concurrency {one}", {"concurrency": one}) for one in many] or [("", {})]


def _workloads(args: Namespace) -> list[Any]:
    from octavo.bench.workloads import pick_served

    if args.workload and (args.sweep or args.sweep_rate or args.request_rate != math.inf or args.max_concurrency):
        raise ConfigError("--workload names its own concurrency: leave --max-concurrency, rates and sweeps out")
    return pick_served(args.workload or [])


def _served(work: Any) -> dict[str, Any]:
    """What a workload changes of the load. Each client has asked once before it counts: connections are open then, and
    the server has met the size."""
    return {
        "requests": work.requests,
        "concurrency": work.concurrency,
        "inputs": work.inputs,
        "outputs": work.outputs,
        "warmups": work.concurrency,
    }


def _pairs(words: list[str], flag: str) -> dict[str, str]:
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals):
            raise ConfigError(f"{flag} takes NAME=VALUE, not {word[:40]!r}")
        found[name] = value
    return found


def _name(load: Any, points: list[Any]) -> str:
    rate = f"{load.rate:g}" if load.rate else "inf"
    what = f"sweep{len(points)}" if len(points) > 1 else f"{rate}qps-concurrency{load.concurrency}"
    model = (load.label or load.model).rpartition("/")[2]
    return f"{'openai-chat' if load.chat else 'openai'}-{what}-{model}-{time.strftime('%Y%m%d-%H%M%S')}.json"


def _title(load: Any, args: Namespace) -> str:
    by = "request rate" if args.sweep_rate else "concurrency"
    model = (load.label or load.model).rpartition("/")[2]
    return f"{model}: {load.prefix + load.inputs} tokens in, {load.outputs} out, by {by}"
