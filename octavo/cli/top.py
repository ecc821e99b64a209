"""`octavo top`: a running server in the terminal, from its /metrics. Ctrl-C or q ends."""

import contextlib
import select
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from octavo.cli.terminal import bold, dim
from octavo.common.client import FAILURES, Identity, add_tls_flags, bearer, fetch, identity, reason
from octavo.config import env
from octavo.config.cli import Parser
from octavo.errors import ConfigError

#: Seconds that a server gets to tell its metrics, and the most bytes of them.
PATIENCE = 10.0
LONGEST = 32 << 20
DEFAULT_URL = "http://127.0.0.1:8000"
#: Looks that latencies are taken over, and that the picture of the speed shows.
SPAN = 30
LATENCIES = {
    "time to first token": "vllm:time_to_first_token_seconds",
    "between tokens": "vllm:inter_token_latency_seconds",
    "whole request": "vllm:e2e_request_latency_seconds",
    "in the queue": "vllm:request_queue_time_seconds",
}
_BAR = 24
_STEPS = "▁▂▃▄▅▆▇█"

#: Upper bound of a bucket in seconds -> values at most that, of all time.
Buckets = dict[float, float]


def parser() -> Parser:
    found = Parser(prog="octavo top", usage="octavo top [URL] [flags]", description=__doc__)
    found.add_argument("url", metavar="URL", nargs="?", help=f"the server ({DEFAULT_URL})")
    found.add_argument("--url", dest="url_flag", metavar="URL", help="the same, as a flag")
    found.add_argument("--api-key", metavar="KEY", help="key for the server (OCTAVO_API_KEY)")
    add_tls_flags(found)
    found.add_argument("--interval", type=float, default=2.0, metavar="SECONDS", help="between two looks (2)")
    found.add_argument("--once", action="store_true", help="print it once, over one interval, and end")
    return found


def main(argv: Sequence[str]) -> int:
    """Watch until the user has enough; the exit status. Raises ``ConfigError`` where no server answers at first."""
    flags = parser()
    args = flags.parse_args(argv)
    if args.url is not None and args.url_flag not in (None, args.url):
        flags.error(f"the server is given twice: {args.url!r} and --url {args.url_flag!r}")
    if not 0.1 <= args.interval <= 3600:
        raise ConfigError(f"--interval must be from 0.1 to 3600 seconds, got {args.interval:g}")
    url = address(args.url or args.url_flag or DEFAULT_URL)
    key = args.api_key or env.read("OCTAVO_API_KEY")
    who = identity(args, url, env.read("OCTAVO_SSL_KEYFILE_PASSWORD"))
    looks: deque[Look] = deque([look(url, key, who)], maxlen=SPAN + 1)
    if args.once:
        time.sleep(args.interval)
        looks.append(look(url, key, who))
        print("\n".join(picture(looks, url)))
        return 0
    with _screen() as wait:
        trouble = ""
        while True:
            _show([*picture(looks, url), *([trouble] if trouble else [])])
            if wait(args.interval):
                return 0
            try:
                looks.append(look(url, key, who))
                trouble = ""
            except ConfigError as error:
                trouble = f"{error}; still trying"


def address(url: str) -> str:
    """Where the server is: without /v1, and with http:// where nothing is said. Raises ``ConfigError``."""
    found = (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/v1")
    if not found.startswith(("http://", "https://")):
        raise ConfigError(f"the server {url!r} must begin with http:// or https://")
    return found


@dataclass
class Look:
    """What a server said at ``at`` (monotonic seconds). Tokens and requests are counted from its start."""

    at: float
    model: str = ""
    running: float = 0.0
    waiting: float = 0.0
    kv: float = 0.0
    output: float = 0.0
    prompt: float = 0.0
    queries: float = 0.0
    hits: float = 0.0
    answered: float = 0.0
    preempted: float = 0.0
    latencies: dict[str, Buckets] = field(default_factory=dict)


def look(url: str, key: str | None, who: Identity | None = None) -> Look:
    """Ask the server. Raises ``ConfigError`` in a sentence where it does not tell."""
    request = urllib.request.Request(url + "/metrics", headers=bearer(key))
    try:
        with fetch(request, PATIENCE, who) as answer:
            text = answer.read(LONGEST).decode()
    except urllib.error.HTTPError as error:
        wants = "it wants a key (--api-key)" if error.code == 401 else f"it says {error.code} {error.reason}"
        raise ConfigError(f"the server at {url} does not tell its metrics: {wants}") from None
    except (*FAILURES, ValueError) as error:
        raise ConfigError(f"no server answers at {url}: {reason(error)}") from None
    return read(text, time.monotonic())


def read(text: str, at: float) -> Look:
    """The look in Prometheus' text. Raises ``ConfigError`` for a text of something else."""
    from prometheus_client.parser import text_string_to_metric_families

    sums: dict[str, float] = {}
    found, engines = Look(at), set()
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
                if sample.name == "vllm:kv_cache_usage_perc":
                    engines.add(sample.labels.get("engine", ""))
                    found.model = sample.labels.get("model_name", "")
                if sample.name.endswith("_bucket") and "le" in sample.labels:
                    buckets = found.latencies.setdefault(sample.name.removesuffix("_bucket"), {})
                    bound = float(sample.labels["le"])
                    buckets[bound] = buckets.get(bound, 0.0) + sample.value
    except ValueError as error:
        raise ConfigError(f"the answer is not in Prometheus' text format: {error}") from None
    if "vllm:num_requests_running" not in sums:
        raise ConfigError("the server tells metrics, but none of a model")
    for name, metric in _METRICS.items():
        setattr(found, name, sums.get(metric, 0.0))
    found.kv /= max(1, len(engines))
    return found


_METRICS = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "kv": "vllm:kv_cache_usage_perc",
    "output": "vllm:generation_tokens_total",
    "prompt": "vllm:prompt_tokens_total",
    "queries": "vllm:prefix_cache_queries_total",
    "hits": "vllm:prefix_cache_hits_total",
    "answered": "vllm:request_success_total",
    "preempted": "vllm:num_preemptions_total",
}


def picture(looks: Sequence[Look], url: str) -> list[str]:
    """The lines to show: speeds since the look before, the rest over all looks, or since the start where nothing
    happened meanwhile."""
    now, first = looks[-1], looks[0]
    output, prompt = rates(looks, "output"), rates(looks, "prompt")
    queries, hits = now.queries - first.queries, now.hits - first.hits
    if queries <= 0:
        queries, hits = now.queries, now.hits
    hit = f"{_bar(hits / queries)} of prompt tokens" if queries > 0 else dim("nothing asked yet")
    lines = [
        f"{bold('octavo top')}  {now.model}  {url}  {time.strftime('%H:%M:%S')}",
        "",
        f"  requests    {now.running:>7,.0f} running {now.waiting:>6,.0f} waiting {now.answered:>9,.0f} answered"
        f" {now.preempted:>5,.0f} preempted",
        f"  tokens/s    {output[-1] if output else 0:>7,.0f} output  {prompt[-1] if prompt else 0:>7,.0f} prompt  "
        f"{_spark(output)}",
        f"  KV cache    {_bar(now.kv)}",
        f"  cache hits  {hit}",
        "",
        dim(f"  {'latency':<20}{'p50':>10}{'p90':>10}{'p99':>10}{'count':>12}"),
    ]
    for title, metric in LATENCIES.items():
        counts = since(now.latencies.get(metric, {}), first.latencies.get(metric, {}))
        cells = "".join(f"{_seconds(quantile(counts, q)):>10}" for q in (0.5, 0.9, 0.99))
        lines.append(f"  {title:<20}{cells}{sum(counts.values()):>12,.0f}")
    return lines


def rates(looks: Sequence[Look], name: str) -> list[float]:
    """Growth of a counter a second, from look to look; 0 where the server began anew."""
    return [max(0.0, getattr(b, name) - getattr(a, name)) / max(1e-9, b.at - a.at) for a, b in pairwise(looks)]


def since(now: Buckets, before: Buckets) -> Buckets:
    """How many values fell into each bucket since ``before``; of all time where none did."""
    grown = {bound: count - before.get(bound, 0.0) for bound, count in sorted(now.items())}
    whole = list(grown.values())
    if not whole or whole[-1] <= 0 or min(whole) < 0:
        grown = dict(sorted(now.items()))
    under, found = 0.0, {}
    for bound, count in grown.items():
        found[bound] = max(0.0, count - under)
        under = max(under, count)
    return found


def quantile(counts: Mapping[float, float], q: float) -> float | None:
    """The value at ``q``, each bucket taken as evenly filled; the last bound for what lies over it; None of nothing."""
    rank, under, low = q * sum(counts.values()), 0.0, 0.0
    if rank <= 0:
        return None
    for bound, count in counts.items():
        if count and under + count >= rank:
            return low if bound == float("inf") else low + (bound - low) * (rank - under) / count
        under, low = under + count, bound
    return low


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"


def _bar(share: float) -> str:
    full = round(min(1.0, max(0.0, share)) * _BAR)
    return f"{_glyphs('█', '#') * full}{dim(_glyphs('░', '.') * (_BAR - full))} {share:5.1%}"


def _spark(values: Sequence[float]) -> str:
    top = max(values, default=0.0)
    if top <= 0 or _glyphs("█", "") == "":
        return ""
    return "".join(_STEPS[min(len(_STEPS) - 1, int(value / top * len(_STEPS)))] for value in values[-SPAN:])


def _glyphs(fine: str, plain: str) -> str:
    return fine if (sys.stdout.encoding or "").lower().replace("-", "") == "utf8" else plain


def _show(lines: Sequence[str]) -> None:
    if not sys.stdout.isatty():
        print("\n".join([*lines, ""]), flush=True)
        return
    rows = shutil.get_terminal_size().lines
    print("\x1b[H" + "\n".join(f"{line}\x1b[K" for line in lines[: rows - 1]) + "\x1b[J", end="", flush=True)


@contextlib.contextmanager
def _screen() -> Iterator:
    """The other screen of the terminal, without a cursor; gives a wait that is true once the user has enough."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
            yield _sleep
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    print("\x1b[?1049h\x1b[?25l\x1b[?7l", end="", flush=True)
    try:
        tty.setcbreak(sys.stdin)
        yield _key
    except KeyboardInterrupt:
        pass
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        print("\x1b[?7h\x1b[?25h\x1b[?1049l", end="", flush=True)


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _key(seconds: float) -> bool:
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(ready) and sys.stdin.read(1) in ("q", "Q", "")
