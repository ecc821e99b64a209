"""OpenTelemetry: a span for each request of the engine, with vLLM's attribute names. Needs ``octavo[trace]``.

A span says who, when and how many tokens, never what. Spans are sent by a thread; who does not take them loses them.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

from octavo.errors import ConfigError, OctavoError
from octavo.outputs import RequestMetrics
from octavo.params import SamplingParams

SPAN = "llm_request"
#: Seconds that the last spans get to leave.
FAREWELL = 1.0


class Told(Protocol):
    """An answer of a request: ``count`` tokens."""

    @property
    def count(self) -> int: ...


class Traced(Protocol):
    """A request that is over, as ``front.fanout`` tells of it. ``carrier``: headers of the trace it belongs to."""

    @property
    def request_id(self) -> str: ...
    @property
    def prompt_ids(self) -> list[int]: ...
    @property
    def params(self) -> SamplingParams: ...
    @property
    def metrics(self) -> RequestMetrics: ...
    @property
    def answers(self) -> Sequence[Told]: ...
    @property
    def cached(self) -> int | None: ...
    @property
    def error(self) -> OctavoError | None: ...
    @property
    def outcome(self) -> str: ...
    @property
    def carrier(self) -> Mapping[str, str]: ...


def check(endpoint: str) -> None:
    """Raises ``ConfigError`` where traces cannot be sent to ``endpoint``."""
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError(f"--otlp-traces-endpoint must be a URL as http://host:4318/v1/traces, got {endpoint[:200]!r}")
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter
        import opentelemetry.sdk.trace  # noqa: F401
    except ImportError:
        raise ConfigError(
            "--otlp-traces-endpoint needs packages that are not installed: pip install 'octavo[trace]'"
        ) from None


class Tracer:
    """Sends to ``endpoint``. ``request`` is called with each request that is over; it is quick and does not raise."""

    def __init__(self, endpoint: str, model: str):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        named = Resource({SERVICE_NAME: "octavo"}).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=named, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        self._tracer = self._provider.get_tracer("octavo")
        self._extract = TraceContextTextMapPropagator().extract
        self._kind = SpanKind.SERVER
        self._failed = Status(StatusCode.ERROR)
        self._model = model

    def request(self, one: Traced) -> None:
        times, now = one.metrics, time.monotonic()
        epoch = time.time() - now  # of the monotonic clock
        end = times.finished_time or now
        span = self._tracer.start_span(
            SPAN,
            self._extract(one.carrier),
            self._kind,
            _attributes(one, self._model, end),
            start_time=int((epoch + times.arrival_time) * 1e9),
        )
        if one.outcome == "failed":
            span.set_status(self._failed)
            span.set_attribute("error.type", type(one.error).__name__)
        span.end(int((epoch + end) * 1e9))

    def close(self) -> None:
        """Send what is left, if that takes no more than ``FAREWELL`` seconds."""
        last = threading.Thread(target=self._provider.shutdown, name="octavo-traces", daemon=True)
        last.start()
        last.join(FAREWELL)


def _attributes(one: Traced, model: str, end: float) -> dict[str, Any]:
    params, times = one.params, one.metrics
    found: dict[str, Any] = {
        "gen_ai.request.id": one.request_id,
        "gen_ai.response.model": model,
        "gen_ai.request.n": params.n,
        "gen_ai.request.temperature": float(params.temperature),
        "gen_ai.request.top_p": float(params.top_p),
        "gen_ai.usage.prompt_tokens": len(one.prompt_ids),
        "gen_ai.usage.completion_tokens": sum(answer.count for answer in one.answers),
        "gen_ai.usage.cached_tokens": one.cached or 0,
        "gen_ai.latency.e2e": end - times.arrival_time,
        "octavo.outcome": one.outcome,
    }
    if params.max_tokens is not None:
        found["gen_ai.request.max_tokens"] = params.max_tokens
    scheduled, first, last = times.first_scheduled_time, times.first_token_time, times.last_token_time
    if scheduled is not None:
        found["gen_ai.latency.time_in_queue"] = scheduled - times.arrival_time
        found["gen_ai.latency.time_in_model_inference"] = end - scheduled
    if first is not None:
        found["gen_ai.latency.time_to_first_token"] = first - times.arrival_time
        if scheduled is not None:
            found["gen_ai.latency.time_in_model_prefill"] = first - scheduled
        if last is not None:
            found["gen_ai.latency.time_in_model_decode"] = last - first
    return found
