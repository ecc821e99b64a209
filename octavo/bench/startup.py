"""`octavo bench startup`: seconds from the start of a process to its first token, phase by phase; for a server to the
first token served, and the share of a core that it takes while nobody asks."""

import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from octavo.bench import report
from octavo.bench.child import START_WITHIN, Child
from octavo.common.client import FAILURES, fetch, reason, refusal
from octavo.errors import ConfigError

#: Runs in the child: everything that a user's own short script would do, with the clock read in between.
_SCRIPT = """
import json, sys, time
begin = float(sys.argv[1])
phases = {"python": time.time() - begin}
from octavo import LLM, SamplingParams
phases["import"] = time.time() - begin
llm = LLM(**json.loads(sys.argv[2]))
phases["engine"] = time.time() - begin
[answer] = llm.generate([{"prompt_token_ids": list(range(100, 228))}],
                        SamplingParams(max_tokens=1, temperature=0, ignore_eos=True), use_tqdm=False)
phases["first_token"] = time.time() - begin
print(json.dumps({"phases": phases, "boot": llm.ready.phases}))
llm.close()
"""

#: Quiet seconds in which a server makes ready what nobody has asked for yet (the vocabulary, for grammars).
SETTLE = 5.0
#: Quiet seconds over which a server's own use of the processor is counted.
IDLE = 10.0


def startup(engine: dict[str, Any], repeats: int, label: str) -> dict[str, Any]:
    """``repeats`` fresh processes; the first may find files and caches cold, so it is reported apart.

    Raises ConfigError with what the child said where a start fails.
    """
    runs = [_offline(engine) for _ in range(repeats)]
    return _record(runs, label, "startup", boot={name: round(value, 3) for name, value in _best(runs)["boot"].items()})


def served(engine: dict[str, Any], repeats: int, label: str) -> dict[str, Any]:
    """The same of `octavo serve`: until it listens, and until a client has its first token.

    ``idle_percent``: of one core, all the server's processes together, over ``IDLE`` quiet seconds.
    """
    runs = [_server(engine) for _ in range(repeats)]
    return _record(runs, label, "startup-served", idle_percent=round(max(run["idle_percent"] for run in runs), 2))


def _record(runs: list[dict[str, Any]], label: str, workload: str, **more: Any) -> dict[str, Any]:
    seconds = [run["phases"]["first_token"] for run in runs]
    return report.record(
        model=label,
        impl="octavo",
        workload=workload,
        seconds=round(min(seconds), 3),
        first_seconds=round(seconds[0], 3),
        median_seconds=round(report.median(seconds), 3),
        phases={name: round(value, 3) for name, value in _best(runs)["phases"].items()},
        **more,
    )


def _best(runs: list[dict[str, Any]]) -> dict[str, Any]:
    return min(runs, key=lambda run: run["phases"]["first_token"])


def _offline(engine: dict[str, Any]) -> dict[str, Any]:
    command = [sys.executable, "-c", _SCRIPT, repr(time.time()), json.dumps(engine)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_WITHIN)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"the start took more than {START_WITHIN:.0f} s") from None
    if done.returncode:
        raise ConfigError(f"the start failed: {_reason(done.stderr)}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def _server(engine: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "serve.json"
        config.write_text(json.dumps(engine))
        begin = time.monotonic()
        with Child("octavo", ["serve", "--config", str(config)]) as child:
            phases = {"listening": time.monotonic() - begin}
            _first_token(child.url)
            phases["first_token"] = time.monotonic() - begin
            time.sleep(SETTLE)
            before = sum(child.cpu_seconds().values())
            time.sleep(IDLE)
            spent = sum(child.cpu_seconds().values()) - before
    return {"phases": phases, "idle_percent": 100 * spent / IDLE}


def _first_token(url: str) -> None:
    """Raises ``ConfigError`` with what the server said where it refuses."""
    body = {"prompt": list(range(100, 228)), "max_tokens": 1, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(
        url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with fetch(request, START_WITHIN) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        raise ConfigError(f"the first request failed: {refusal(error)}") from None
    except FAILURES as error:
        raise ConfigError(f"the first request failed: {reason(error)}") from None


def _reason(stderr: str) -> str:
    """The message of octavo's own error, all its lines; of any other the last line."""
    _, ours, tail = stderr.rpartition("\noctavo.errors.")
    if ours:
        return tail.partition(": ")[2].strip()
    return (stderr.strip().splitlines() or ["no message"])[-1]
