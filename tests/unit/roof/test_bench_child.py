"""Servers that benchmarks start: where one does not come to serve, or refuses, the error says why."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from octavo.bench.child import Child
from octavo.bench.startup import _first_token
from octavo.errors import ConfigError


@pytest.mark.parametrize("lines", [0, 1, 30])
def test_a_start_that_fails_tells_its_last_lines(tmp_path, monkeypatch, lines):
    (tmp_path / "doomed.py").write_text(f"for number in range({lines}): print('line', number)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        Child("doomed", [])
    said = [f"line {number}" for number in range(lines)][-20:]
    assert str(caught.value) == "the start failed: " + ("\n".join(said) or "no message")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (json.dumps({"error": {"message": "129 tokens do not fit"}}), "129 tokens do not fit"),
        ("[]", "the server says 400 Bad Request"),
        ("<html>", "the server says 400 Bad Request"),
    ],
)
def test_a_first_request_that_is_refused_is_told_in_a_sentence(body, said):
    class Refuses(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(400)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *args):
            pass

    with HTTPServer(("127.0.0.1", 0), Refuses) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(ConfigError, match=f"^the first request failed: {said}$"):
            _first_token(url)
        server.shutdown()
    with pytest.raises(ConfigError, match=r"^the first request failed: .*refused"):
        _first_token(url)
