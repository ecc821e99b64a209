"""Prometheus: vLLM's metric names, so that dashboards and autoscalers work unchanged."""

import os
from collections.abc import Mapping
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from octavo.front.metrics.processes import Processes, seconds
from octavo.front.metrics.strips import Histogram, Number, Sheet, Strips
from octavo.outputs import RequestMetrics
from octavo.params import SamplingParams
from octavo.wire.stats import StepStats

CONTENT_TYPE = CONTENT_TYPE_LATEST
REASONS = ("stop", "length", "abort", "error")
#: Those that were received and still run aside, these add up to those that were received.
OUTCOMES = ("succeeded", "failed", "aborted", "rejected")
RECEIVED, ENDED = "octavo:requests_received", "octavo:requests_ended"
#: Rows of a strip that are no metrics: the process that writes it; seconds of the processor of those that have ended.
_PID, _SPENT = ("pid",), ("spent",)
_WAITS = ("capacity", "deferred")
_LABELS = ("model_name", "engine")
_SECONDS_TO_FIRST = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
_SECONDS_BETWEEN = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
_SECONDS_WHOLE = (
    0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
)  # fmt: skip
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_N = (1, 2, 5, 10, 20)
#: Others are counted together: a method is any word that a client makes up.
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"})


class Ended(Protocol):
    """An answer that ended, as ``front.fanout`` tells of it."""

    @property
    def metrics(self) -> RequestMetrics: ...
    @property
    def params(self) -> SamplingParams: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def reason(self) -> str: ...
    @property
    def most_tokens(self) -> int | None: ...


class Prometheus:
    """The metrics of one engine: an observer of requests and of step statistics. ``text`` is what a scraper gets.

    Where several processes serve the engine each has one of these, with its ``own`` strip of ``strips``: the text is
    of all of them, whoever is asked.
    """

    def __init__(
        self,
        model: str,
        max_model_len: int,
        cache: Mapping[str, Any],
        engine: str = "0",
        strips: Strips | None = None,
        own: int = 0,
    ):
        self._sheet = Sheet(Strips() if strips is None else strips, own)
        self._registry = CollectorRegistry()
        self._registry.register(Processes(self._pids, self._spent))
        self._registry.register(self._sheet)
        self._label_values = (model, engine)
        self._sheet.strip.row(_PID, 1)[0] = os.getpid()
        tokens = _one_two_five(max_model_len)

        self._running = self._gauge("num_requests_running", "requests that run")
        self._waiting = self._gauge("num_requests_waiting", "requests that wait to run")
        self._waiting_for = self._by("num_requests_waiting_by_reason", "requests that wait, by reason", _WAITS)
        self._kv_usage = self._gauge("kv_cache_usage_perc", "share of the KV cache that is in use; 1 is all of it")
        self._gauge_info("cache_config_info", "how the KV cache is cut up", cache)

        self._prompt_tokens = self._counter("prompt_tokens", "prompt tokens that steps have computed")
        self._generation_tokens = self._counter("generation_tokens", "tokens generated")
        self._queries = self._counter("prefix_cache_queries", "prompt tokens looked up in the prefix cache")
        self._hits = self._counter("prefix_cache_hits", "prompt tokens that the prefix cache gave")
        self._cached = self._counter("prompt_tokens_cached", "prompt tokens of ended requests that were cached")
        self._preemptions = self._counter("num_preemptions", "requests that had to give their pages back")
        self._received = self._sheet.add("counter", RECEIVED, "requests handed to the engine", _LABELS).number(
            *self._label_values
        )
        ended = self._sheet.add("counter", ENDED, "how they ended", (*_LABELS, "outcome"))
        self._ended = {outcome: ended.number(*self._label_values, outcome) for outcome in OUTCOMES}
        self._drafts = self._counter("spec_decode_num_drafts", "steps of a request in which drafts were verified")
        self._draft_tokens = self._counter("spec_decode_num_draft_tokens", "draft tokens verified")
        self._accepted = self._counter("spec_decode_num_accepted_tokens", "draft tokens that were right")
        self._accepted_at = self._sheet.add(
            "counter",
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "draft tokens that were right, by their place among the drafts",
            (*_LABELS, "position"),
        )
        self._success = self._by_reason("request_success", "answers that ended, by reason")

        self._step_tokens = self._histogram("iteration_tokens_total", "tokens a step", _STEP_TOKENS)
        self._first = self._histogram("time_to_first_token_seconds", "arrival to first token", _SECONDS_TO_FIRST)
        self._between = self._histogram("inter_token_latency_seconds", "token to token", _SECONDS_BETWEEN)
        self._per_token = self._histogram(
            "request_time_per_output_token_seconds", "mean time a token of a request, after the first", _SECONDS_BETWEEN
        )
        self._whole = self._histogram("e2e_request_latency_seconds", "arrival to end", _SECONDS_WHOLE)
        self._queue = self._histogram("request_queue_time_seconds", "arrival to first step", _SECONDS_WHOLE)
        self._inference = self._histogram("request_inference_time_seconds", "first step to end", _SECONDS_WHOLE)
        self._prefill = self._histogram("request_prefill_time_seconds", "first step to first token", _SECONDS_WHOLE)
        self._decode = self._histogram("request_decode_time_seconds", "first token to last", _SECONDS_WHOLE)
        self._request_prompt = self._histogram("request_prompt_tokens", "prompt tokens of a request", tokens)
        self._request_output = self._histogram("request_generation_tokens", "tokens of an answer", tokens)
        self._request_most = self._histogram(
            "request_max_num_generation_tokens", "tokens of a request's longest answer", tokens
        )
        self._request_max = self._histogram("request_params_max_tokens", "max_tokens that requests asked for", tokens)
        self._request_n = self._histogram("request_params_n", "n that requests asked for", _N)
        self._http = self._sheet.add(
            "counter", "http_requests", "answered HTTP requests", ("handler", "method", "status")
        )
        self._http_seconds = self._sheet.add(
            "histogram",
            "http_request_duration_seconds",
            "until the last byte of the answer",
            ("handler", "method"),
            _SECONDS_WHOLE,
        )

    def text(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return generate_latest(self._registry)

    def stats(self, stats: StepStats) -> None:
        """What the core reports."""
        self._running.set(stats.running)
        self._waiting.set(stats.waiting)
        self._waiting_for["deferred"].set(stats.deferred)
        self._waiting_for["capacity"].set(stats.waiting - stats.deferred)
        self._kv_usage.set(stats.kv_usage)
        self._prompt_tokens.inc(stats.prompt_tokens)
        self._generation_tokens.inc(stats.generation_tokens)
        self._queries.inc(stats.prefix_queries)
        self._hits.inc(stats.prefix_hits)
        self._preemptions.inc(stats.preemptions)
        if stats.drafts:
            self._drafts.inc(stats.drafts)
            self._draft_tokens.inc(stats.draft_tokens)
            self._accepted.inc(sum(stats.accepted))
            for position, count in enumerate(stats.accepted):
                self._accepted_at.number(*self._label_values, str(position)).inc(count)
        if stats.steps:
            self._step_tokens.observe((stats.prompt_tokens + stats.generation_tokens) / stats.steps, stats.steps)

    def first_token(self, seconds: float) -> None:
        self._first.observe(seconds)

    def more_tokens(self, seconds: float, count: int) -> None:
        # Tokens that are told together count with their mean distance.
        self._between.observe(seconds / count, count)

    def received(self) -> None:
        self._received.inc()

    def ended(self, outcome: str) -> None:
        self._ended[outcome].inc()

    def finished(self, one: Ended) -> None:
        times = one.metrics
        end = times.finished_time or times.last_token_time or times.arrival_time
        self._success[one.reason].inc()
        self._cached.inc(one.cached_tokens)
        self._request_prompt.observe(one.prompt_tokens)
        self._request_output.observe(one.output_tokens)
        if one.most_tokens is not None:
            self._request_n.observe(one.params.n)
            self._request_most.observe(one.most_tokens)
        if one.params.max_tokens is not None:
            self._request_max.observe(one.params.max_tokens)
        self._whole.observe(end - times.arrival_time)
        if times.first_scheduled_time is None:
            return
        self._queue.observe(times.first_scheduled_time - times.arrival_time)
        self._inference.observe(end - times.first_scheduled_time)
        if times.first_token_time is None or times.last_token_time is None:
            return
        self._prefill.observe(times.first_token_time - times.first_scheduled_time)
        self._decode.observe(times.last_token_time - times.first_token_time)
        if one.output_tokens > 1:
            self._per_token.observe((times.last_token_time - times.first_token_time) / (one.output_tokens - 1))

    def http(self, handler: str, method: str, status: int, seconds: float) -> None:
        """An answered HTTP request; ``handler`` is the route's pattern, never a path that a client made up."""
        method = method if method in _METHODS else "other"
        self._http.number(handler, method, f"{status // 100}xx").inc()
        self._http_seconds.histogram(handler, method).observe(seconds)

    def bury(self, strip: int) -> None:
        """The process that wrote ``strip`` has ended and was not yet waited for: what it had begun was aborted."""
        rows = self._sheet.strips[strip].rows()
        ended = {name[-1]: row for name, row in rows.items() if name[0] == ENDED}
        for name, row in rows.items():
            if name[0] == RECEIVED and "aborted" in ended:  # it may have ended before it had named them all
                ended["aborted"][0] += row[0] - sum(one[0] for one in ended.values())
        if _PID in rows and rows[_PID][0]:
            self._sheet.strip.row(_SPENT, 1)[0] += seconds(int(rows[_PID][0]))
            rows[_PID][0] = 0.0

    def _pids(self) -> list[int]:
        found = [strip.rows().get(_PID) for strip in self._sheet.strips]
        return [int(row[0]) for row in found if row is not None and row[0]]

    def _spent(self) -> float:
        return sum(row[0] for strip in self._sheet.strips if (row := strip.rows().get(_SPENT)) is not None)

    def _gauge(self, name: str, text: str) -> Number:
        return self._sheet.add("gauge", f"vllm:{name}", text, _LABELS).number(*self._label_values)

    def _gauge_info(self, name: str, text: str, values: Mapping[str, Any]) -> None:
        gauge = self._sheet.add("gauge", f"vllm:{name}", text, ("engine", *values))
        gauge.number(self._label_values[1], *[str(value) for value in values.values()]).set(1)

    def _by(self, name: str, text: str, reasons: tuple[str, ...]) -> dict[str, Number]:
        gauge = self._sheet.add("gauge", f"vllm:{name}", text, (*_LABELS, "reason"))
        return {reason: gauge.number(*self._label_values, reason) for reason in reasons}

    def _counter(self, name: str, text: str) -> Number:
        return self._sheet.add("counter", f"vllm:{name}", text, _LABELS).number(*self._label_values)

    def _by_reason(self, name: str, text: str) -> dict[str, Number]:
        counter = self._sheet.add("counter", f"vllm:{name}", text, (*_LABELS, "finished_reason"))
        return {reason: counter.number(*self._label_values, reason) for reason in REASONS}

    def _histogram(self, name: str, text: str, bounds: tuple[float, ...]) -> Histogram:
        found = self._sheet.add("histogram", f"vllm:{name}", text, _LABELS, bounds)
        return found.histogram(*self._label_values)


def _one_two_five(most: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, ... up to ``most``."""
    found, scale = [], 1
    while scale <= most:
        found += [step * scale for step in (1, 2, 5) if step * scale <= most]
        scale *= 10
    return tuple(found)
