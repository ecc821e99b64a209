"""`octavo bench startup`: seconds from the start of a process to its first token, phase by phase; for a server to the
first token served, and the share of a core that it takes while nobody asks."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from octavo.bench import report
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

#: No start takes longer without something being wrong.
DEADLINE = 600.0
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
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"the start took more than {DEADLINE:.0f} s") from None
    if done.returncode:
        raise ConfigError(f"the start failed: {_reason(done.stderr)}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def _server(engine: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "serve.json"
        config.write_text(json.dumps(engine))
        command = [sys.executable, "-m", "octavo", "serve", "--config", str(config)]
        begin = time.monotonic()
        child = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", "0", "--disable-access-log"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        alarm = threading.Timer(DEADLINE, child.kill)
        alarm.start()
        try:
            url = _url(child)
            phases = {"listening": time.monotonic() - begin}
            threading.Thread(target=_drain, args=(child,), daemon=True).start()
            _first_token(url)
            phases["first_token"] = time.monotonic() - begin
            before = _cpu_seconds(child.pid)
            time.sleep(IDLE)
            return {"phases": phases, "idle_percent": 100 * (_cpu_seconds(child.pid) - before) / IDLE}
        finally:
            alarm.cancel()
            child.terminate()
            try:
                child.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()


def _url(child: subprocess.Popen) -> str:
    said = []
    assert child.stdout is not None
    for line in child.stdout:
        if found := re.match(r"octavo serves .* at (\S+)", line):
            return found[1]
        said.append(line.rstrip())
    raise ConfigError(f"the start failed: {said[-1] if said else 'no message'}")


def _drain(child: subprocess.Popen) -> None:
    assert child.stdout is not None
    for _ in child.stdout:
        pass


def _first_token(url: str) -> None:
    body = {"prompt": list(range(100, 228)), "max_tokens": 1, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(
        url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=DEADLINE) as answer:
        answer.read()


def _cpu_seconds(leader: int) -> float:
    """Processor time so far of the living processes of a session."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if int(fields[3]) == leader:
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def _reason(stderr: str) -> str:
    """The message of octavo's own error, all its lines; of any other the last line."""
    _, ours, tail = stderr.rpartition("\noctavo.errors.")
    if ours:
        return tail.partition(": ")[2].strip()
    return (stderr.strip().splitlines() or ["no message"])[-1]
