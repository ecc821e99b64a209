"""Traces reach their collector, hold no text, and hold up nobody where there is none."""

import http.server
import threading
import time

import pytest

from octavo.testing.served import Served, fake_model

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


class Collector(http.server.ThreadingHTTPServer):
    def __init__(self):
        self.bodies = []
        super().__init__(("127.0.0.1", 0), Take)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def spans(self):
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        told = [ExportTraceServiceRequest.FromString(body) for body in list(self.bodies)]
        return [
            (resource.resource, span)
            for one in told
            for resource in one.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


class Take(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.server.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


def value(attributes, name):
    (found,) = [one.value for one in attributes if one.key == name]
    return getattr(found, found.WhichOneof("value"))


def test_spans_of_requests(tmp_path):
    collector = Collector()
    endpoint = f"http://127.0.0.1:{collector.server_port}/v1/traces"
    model = fake_model(tmp_path / "model", latency=0.001)
    flags = [str(model), "--otlp-traces-endpoint", endpoint, "--served-model-name", "tiny"]
    server = Served(flags, env={"OTEL_BSP_SCHEDULE_DELAY": "100"})
    try:
        server.ready()
        ask = {"prompt": "the cat sat", "max_tokens": 5, "ignore_eos": True, "n": 2, "temperature": 0.5, "user": "me"}
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "mine"}
        assert server.post("/v1/completions", ask, **headers)[0] == 200
        assert server.post("/v1/completions", ask | {"n": 1, "stop": ["x"], "stream": False})[0] == 200
        server.until("spans", lambda: len(collector.spans) == 2)
        (resource, first), (_, second) = collector.spans
        assert value(resource.attributes, "service.name") == "octavo"
        assert (first.name, first.trace_id.hex(), first.parent_span_id.hex()) == ("llm_request", TRACE, PARENT)
        assert second.trace_id.hex() != TRACE
        assert value(first.attributes, "gen_ai.request.id") == "cmpl-mine"
        assert value(first.attributes, "gen_ai.response.model") == "tiny"
        assert value(first.attributes, "gen_ai.request.n") == 2
        assert value(first.attributes, "gen_ai.request.temperature") == 0.5
        assert value(first.attributes, "gen_ai.request.max_tokens") == 5
        assert value(first.attributes, "gen_ai.usage.completion_tokens") == 10
        assert value(first.attributes, "gen_ai.usage.prompt_tokens") > 0
        taken = (first.end_time_unix_nano - first.start_time_unix_nano) / 1e9
        exact = 1e-5  # a float of seconds since 1970 holds no more than a part of a microsecond
        assert 0 < value(first.attributes, "gen_ai.latency.time_to_first_token") <= taken + exact
        assert value(first.attributes, "gen_ai.latency.e2e") == pytest.approx(taken, abs=exact)
        assert abs(first.start_time_unix_nano / 1e9 - time.time()) < 3600  # since 1970, in this unit
        assert not any(b"the cat" in body for body in collector.bodies)
    finally:
        server.stop()
        collector.shutdown()
        collector.server_close()


def test_a_collector_that_is_not_there(tmp_path):
    model = fake_model(tmp_path / "model")
    server = Served([str(model), "--otlp-traces-endpoint", "http://127.0.0.1:9/v1/traces", "--log-format", "json"])
    try:
        server.ready()
        assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 2})[0] == 200
        server.process.terminate()
        assert server.wait() == 0
        assert all(line.startswith(("{", "octavo serves")) for line in server.lines), server.log
    finally:
        server.stop()


def test_an_endpoint_that_is_none(tmp_path):
    server = Served([str(fake_model(tmp_path / "model")), "--otlp-traces-endpoint", "localhost:4317"])
    try:
        assert server.wait() == 1
        assert "--otlp-traces-endpoint must be a URL" in server.lines[-1]
    finally:
        server.stop()
