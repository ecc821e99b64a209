"""Start a server with the embedded model, ask it over the OpenAI API, print the answer as it streams, stop it.

`make demo` runs this. It needs nothing but octavo; examples/openai_client.py does the same with the openai package.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

QUESTION = "What is the capital of France?"
READY_WITHIN = 120.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until_ready(url: str, server: subprocess.Popen) -> None:
    end = time.monotonic() + READY_WITHIN
    while time.monotonic() < end:
        if server.poll() is not None:
            sys.exit(f"the server ended with exit code {server.returncode}; its messages are above")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    sys.exit(f"the server was not ready within {READY_WITHIN:.0f} s")


def ask(url: str) -> None:
    body = {
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_tokens": 128,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    begin = time.perf_counter()
    first = None
    tokens = 0
    with urllib.request.urlopen(request, timeout=120) as stream:
        for line in stream:
            if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
                continue
            chunk = json.loads(line[6:])
            if chunk.get("usage"):
                tokens = chunk["usage"]["completion_tokens"]
            for choice in chunk["choices"]:
                text = choice["delta"].get("content")
                if text:
                    first = first or time.perf_counter()
                    print(text, end="", flush=True)
    end = time.perf_counter()
    assert first is not None, "the server sent no text"
    rate = (tokens - 1) / (end - first) if tokens > 1 else float("nan")
    print(f"\n\n{tokens} tokens, {rate:.0f} tokens per second, {(first - begin) * 1e3:.0f} ms to the first token")


def main() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    begin = time.perf_counter()
    command = [sys.executable, "-m", "octavo", "serve", "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen(command, env=os.environ | {"OCTAVO_LOG_LEVEL": "WARNING"})
    try:
        wait_until_ready(url, server)
        print(f"ready after {time.perf_counter() - begin:.1f} s\n\n> {QUESTION}\n")
        ask(url)
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()


if __name__ == "__main__":
    main()
