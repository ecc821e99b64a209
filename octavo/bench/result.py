"""What `octavo bench serve` makes of its answers: a record, the block of figures, and vLLM's JSON."""

import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo.bench import report
from octavo.bench.serving import Answer, Load
from octavo.common.words import nearest
from octavo.errors import ConfigError

#: Metric -> its title in the block.
METRICS = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}
_WIDTH = 50


def metric_names(text: str) -> list[str]:
    """Names of metrics in a list with commas. Raises ``ConfigError`` for an unknown one."""
    found = [one.strip() for one in text.split(",") if one.strip()]
    for one in found:
        if one not in METRICS:
            raise ConfigError(f"unknown metric {one[:40]!r}{nearest(one, METRICS)}; possible: {', '.join(METRICS)}")
    return found


def percentiles(text: str) -> list[float]:
    """Percentiles in a list with commas. Raises ``ConfigError`` for what is none."""
    try:
        found = [float(one) for one in text.split(",")]
    except ValueError:
        raise ConfigError(f"percentiles are numbers with commas, as 50,99, not {text[:40]!r}") from None
    if not all(0 < one <= 100 for one in found):
        raise ConfigError(f"a percentile must be over 0 and at most 100: {text[:40]}")
    return found


def goals(words: Sequence[str]) -> dict[str, float]:
    """``ttft:200 tpot:50`` -> milliseconds by metric. Raises ``ConfigError``."""
    found = {}
    for word in words:
        name, _, value = word.partition(":")
        try:
            (known,), limit = metric_names(name), float(value)
        except ValueError:
            raise ConfigError(f"--goodput takes METRIC:MILLISECONDS, as ttft:200, not {word[:40]!r}") from None
        if known == "itl" or not limit > 0:
            raise ConfigError(f"--goodput {word[:40]}: possible are ttft, tpot and e2el, each with a limit over 0")
        found[known] = limit
    return found


def summary(
    load: Load,
    answers: Sequence[Answer],
    seconds: float,
    *,
    quantiles: Sequence[float] = (99,),
    goal: Mapping[str, float] | None = None,
    drafted: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """The record. ``quantiles``: percentiles beside the mean and the median. ``goal``: milliseconds that a request's
    metrics must stay within to count as good. ``drafted``: growth of the server's speculation counters."""
    good = [one for one in answers if not one.error]
    errors = [one.error for one in answers if one.error]
    made, read = sum(one.tokens for one in good), sum(one.inputs for one in good)
    pace = f"{load.rate:g} req/s" if load.rate else load.concurrency
    values: dict[str, Any] = {
        "workload": f"serve {load.inputs}/{load.outputs} at {pace}",
        "impl": "octavo",
        "model": load.label or load.model,
        "num_prompts": load.requests,
        "max_concurrency": load.concurrency,
        "request_rate": load.rate or "inf",
        "seconds": round(seconds, 3),
        "completed": len(good),
        "failed": len(errors),
        "first_error": errors[0] if errors else None,
        "total_input_tokens": read,
        "total_output_tokens": made,
        "request_throughput": round(len(good) / seconds, 3),
        "out_tok_s": round(made / seconds, 1),
        "in_tok_s": round(read / seconds, 1),
        "peak_out_tok_s": round(max(_peak_tokens(good), made / seconds), 1),
        "peak_concurrent": _peak_requests(good),
    }
    if goal:
        values["request_goodput"] = round(sum(_within(one, goal) for one in good) / seconds, 3)
    for name in METRICS:
        times = [value * 1e3 for value in _times(good, name)]
        values[f"mean_{name}_ms"] = round(statistics.fmean(times), 3) if times else None
        values[f"median_{name}_ms"] = round(statistics.median(times), 3) if times else None
        values[f"std_{name}_ms"] = round(statistics.pstdev(times), 3) if times else None
        for q in sorted({50.0, 99.0, *quantiles}):
            values[f"p{q:g}_{name}_ms"] = round(report.percentile(times, q), 3) if times else None
    return report.record(**values, **_speculated(drafted or {}))


def block(
    record: Mapping[str, Any], metrics: Sequence[str] = tuple(METRICS), quantiles: Sequence[float] = (99,)
) -> str:
    """The record as the block of figures that users of vLLM know, line by line."""
    lines = [" Serving Benchmark Result ".center(_WIDTH, "=")]

    def row(label: str, value: Any) -> None:
        text = "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)
        lines.append(f"{label:<40} {text:<10}".rstrip())

    row("Successful requests:", record["completed"])
    row("Failed requests:", record["failed"])
    if record["max_concurrency"] is not None:
        row("Maximum request concurrency:", record["max_concurrency"])
    if record["request_rate"] != "inf":
        row("Request rate configured (RPS):", float(record["request_rate"]))
    row("Benchmark duration (s):", float(record["seconds"]))
    row("Total input tokens:", record["total_input_tokens"])
    row("Total generated tokens:", record["total_output_tokens"])
    row("Request throughput (req/s):", float(record["request_throughput"]))
    if "request_goodput" in record:
        row("Request goodput (req/s):", float(record["request_goodput"]))
    row("Output token throughput (tok/s):", float(record["out_tok_s"]))
    row("Peak output token throughput (tok/s):", float(record["peak_out_tok_s"]))
    row("Peak concurrent requests:", record["peak_concurrent"])
    row("Total token throughput (tok/s):", float(record["out_tok_s"] + record["in_tok_s"]))
    for name in metrics:
        lines.append(METRICS[name].center(_WIDTH, "-"))
        row(f"Mean {name.upper()} (ms):", record[f"mean_{name}_ms"])
        row(f"Median {name.upper()} (ms):", record[f"median_{name}_ms"])
        for q in quantiles:
            row(f"P{q:g} {name.upper()} (ms):", record[f"p{q:g}_{name}_ms"])
    if "spec_decode_num_drafts" in record:
        lines.append("Speculative Decoding".center(_WIDTH, "-"))
        row("Acceptance rate (%):", record["spec_decode_acceptance_rate"])
        row("Acceptance length:", record["spec_decode_acceptance_length"])
        row("Drafts:", record["spec_decode_num_drafts"])
        row("Draft tokens:", record["spec_decode_draft_tokens"])
        row("Accepted tokens:", record["spec_decode_accepted_tokens"])
        lines.append("Per-position acceptance (%):")
        for position, share in enumerate(record["spec_decode_per_position_acceptance_rates"]):
            row(f"  Position {position}:", share * 100)
    lines.append("=" * _WIDTH)
    if record["first_error"]:
        lines.append(f"First error: {record['first_error']}")
    return "\n".join(lines)


def saved(
    load: Load, record: Mapping[str, Any], answers: Sequence[Answer], metadata: Mapping[str, str], detailed: bool
) -> dict[str, Any]:
    """The record under vLLM's key names; ``detailed``: with the figures of each request, failed ones included."""
    kind = "openai-chat" if load.chat else "openai"
    found = {
        "date": record["date"],
        "endpoint_type": kind,
        "backend": kind,
        "label": load.label,
        "model_id": load.model,
        "tokenizer_id": load.model,
        "num_prompts": load.requests,
        **metadata,
        "request_rate": record["request_rate"],
        "burstiness": load.burstiness,
        "max_concurrency": load.concurrency,
        "duration": record["seconds"],
        "completed": record["completed"],
        "failed": record["failed"],
        "total_input_tokens": record["total_input_tokens"],
        "total_output_tokens": record["total_output_tokens"],
        "request_throughput": record["request_throughput"],
        "request_goodput": record.get("request_goodput"),
        "output_throughput": record["out_tok_s"],
        "total_token_throughput": round(record["out_tok_s"] + record["in_tok_s"], 1),
        "max_output_tokens_per_s": record["peak_out_tok_s"],
        "max_concurrent_requests": record["peak_concurrent"],
    }
    found |= {key: value for key, value in record.items() if key.endswith("_ms") or key.startswith("spec_decode_")}
    if detailed:
        found |= {
            "input_lens": [one.inputs for one in answers],
            "output_lens": [one.tokens for one in answers],
            "ttfts": [one.ttft or 0.0 for one in answers],
            "itls": [one.itl for one in answers],
            "start_times": [one.start for one in answers],
            "errors": [one.error for one in answers],
        }
    return found


def write(path: Path, results: Sequence[Mapping[str, Any]]) -> None:
    """One JSON object, or a list of those of a sweep. Raises ``ConfigError``."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results[0] if len(results) == 1 else list(results)) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None


def _times(answers: Sequence[Answer], name: str) -> list[float]:
    if name == "itl":
        return [gap for one in answers for gap in one.itl]
    return [value for one in answers if (value := getattr(one, name)) is not None]


def _within(one: Answer, goal: Mapping[str, float]) -> bool:
    return all((value := getattr(one, name)) is None or value * 1e3 <= limit for name, limit in goal.items())


def _peak_tokens(answers: Sequence[Answer]) -> float:
    """The most tokens that arrived within one second, counted from the first request; a chunk's tokens are taken as
    equally many in each of an answer's chunks."""
    begin = min((one.start for one in answers), default=0.0)
    arrived: defaultdict[int, float] = defaultdict(float)
    for one in answers:
        if one.ttft is None:
            continue
        each, at = one.tokens / (1 + len(one.itl)), one.start - begin + one.ttft
        for gap in (0.0, *one.itl):
            at += gap
            arrived[int(at)] += each
    return max(arrived.values(), default=0.0)


def _peak_requests(answers: Sequence[Answer]) -> int:
    """The most requests that were open at once."""
    changes = sorted([(one.start, 1) for one in answers] + [(one.start + one.e2el, -1) for one in answers])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def _speculated(grown: Mapping[str, float]) -> dict[str, Any]:
    drafts, tokens = grown.get("num_drafts", 0.0), grown.get("num_draft_tokens", 0.0)
    if drafts <= 0 or tokens <= 0:
        return {}
    accepted = grown.get("num_accepted_tokens", 0.0)
    head = "num_accepted_tokens_per_pos:"
    places = sorted((int(name.removeprefix(head)), count) for name, count in grown.items() if name.startswith(head))
    return {
        "spec_decode_acceptance_rate": round(100 * accepted / tokens, 2),
        "spec_decode_acceptance_length": round(1 + accepted / drafts, 3),
        "spec_decode_num_drafts": int(drafts),
        "spec_decode_draft_tokens": int(tokens),
        "spec_decode_accepted_tokens": int(accepted),
        "spec_decode_per_position_acceptance_rates": [round(count / drafts, 4) for _, count in places],
    }
