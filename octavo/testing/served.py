"""Servers for tests: `octavo serve` in a subprocess, over a fake worker or a tiny model, with its log at hand."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from octavo.testing import tokenizer

FAKE = "octavo.testing.fakes:FakeWorker"
#: Seconds that a test waits for what must come at last. Machines are shared and may be slow: only what hangs is late.
PATIENCE = 240.0
#: Tokens of the longest request of a model whose answers go on for ever, as far as any test can tell.
ENDLESS = 1 << 17
#: A decoder so small that nothing about it costs time; the fake worker reads only ``fake`` of it.
VOCAB = 320
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "float32",
}


def fake_model(
    folder: Path, chat_template: str | None = tokenizer.CHAT_TEMPLATE, *, length: int = 512, **fake: Any
) -> Path:
    """A model's directory for ``FakeWorker``: config.json and a real tokenizer. ``length``: of the longest request.
    ``fake``: the worker's options."""
    tokenizer.write(folder, size=VOCAB, chat_template=chat_template)
    config = CONFIG | {"max_position_embeddings": length, "fake": {"vocab": VOCAB, **fake}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


class Served:
    """A server in a process group of its own. ``flags`` follow `octavo serve`; ``worker`` None is the real one."""

    def __init__(self, flags: Sequence[str], worker: str | None = FAKE, env: dict[str, str] | None = None):
        command = [sys.executable, "-m", "octavo.testing.served", worker or "", *flags, "--host", "127.0.0.1"]
        command.append("--disable-access-log")
        if "--port" not in flags:
            command += ["--port", "0"]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | (env or {}),
        )
        self.lines: list[str] = []
        self.url = ""
        self._said = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if line.startswith("octavo serves "):
                self.url = line.partition(" at ")[2].split()[0]
                self._said.set()
        self._said.set()

    def ready(self) -> "Served":
        """Wait until it serves. Raises ``AssertionError`` with its log where it does not."""
        assert self._said.wait(PATIENCE), f"not ready within {PATIENCE} s:\n{self.log}"
        assert self.url, f"ended before it was ready:\n{self.log}"
        return self

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def wait(self, timeout: float = PATIENCE) -> int:
        """Its exit status."""
        status = self.process.wait(timeout)
        self._reader.join(PATIENCE)
        return status

    def stop(self) -> None:
        """End it, whatever state it is in; nothing of its process group is left."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(PATIENCE)

    def get(self, path: str, **headers: str) -> tuple[int, bytes]:
        """(status, body) of a GET."""
        return self._ask(urllib.request.Request(self.url + path, headers=headers))

    def raw(self, path: str, data: bytes, **headers: str) -> tuple[int, bytes]:
        """(status, body) of a POST of ``data`` as JSON."""
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"} | headers)
        return self._ask(request)

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        """(status, body) of a POST of JSON; bytes go as they are, an empty answer is None."""
        status, answer = self.raw(path, body if isinstance(body, bytes) else json.dumps(body).encode(), **headers)
        return status, json.loads(answer) if answer else None

    def metric(self, name: str) -> float:
        """The sum of a metric's samples; ``name`` may end in labels, as ``x{a="b"``."""
        lines = self.get("/metrics")[1].decode().splitlines()
        ends = "" if "{" in name else ("{", " ")  # of names that begin alike only one is meant
        found = [line for line in lines if line.startswith(name) and line[len(name) :].startswith(ends)]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    def until(self, what: str, check, timeout: float = PATIENCE) -> None:
        """Wait until ``check()`` is true."""
        end = time.monotonic() + timeout
        while not check():
            assert time.monotonic() < end, f"no {what} within {timeout} s:\n{self.log}"
            time.sleep(0.02)

    @staticmethod
    def _ask(request: urllib.request.Request) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()


def main(argv: Sequence[str]) -> int:
    """`octavo serve` with another worker."""
    from octavo.cli.serve import parser
    from octavo.config.args import ServeArgs
    from octavo.config.cli import ask
    from octavo.config.engine import WORKER
    from octavo.errors import ConfigError, EngineDead
    from octavo.launch import online

    worker, *flags = argv
    try:
        return online.serve(ask(ServeArgs, parser().parse_args(flags)), worker or WORKER)
    except (ConfigError, EngineDead) as error:
        print(f"octavo serve: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
