"""`octavo bench startup`: seconds from the start of a process to its first token, phase by phase."""

import json
import subprocess
import sys
import time
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


def startup(engine: dict[str, Any], repeats: int, label: str) -> dict[str, Any]:
    """``repeats`` fresh processes; the first may find files and caches cold, so it is reported apart.

    Raises ConfigError with what the child said where a start fails.
    """
    runs = []
    for _ in range(repeats):
        command = [sys.executable, "-c", _SCRIPT, repr(time.time()), json.dumps(engine)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            raise ConfigError(f"the start took more than {DEADLINE:.0f} s") from None
        if done.returncode:
            raise ConfigError(f"the start failed: {_reason(done.stderr)}")
        runs.append(json.loads(done.stdout.strip().splitlines()[-1]))
    seconds = [run["phases"]["first_token"] for run in runs]
    best = min(runs, key=lambda run: run["phases"]["first_token"])
    return report.record(
        model=label,
        impl="octavo",
        workload="startup",
        seconds=round(min(seconds), 3),
        first_seconds=round(seconds[0], 3),
        median_seconds=round(report.median(seconds), 3),
        phases={name: round(value, 3) for name, value in best["phases"].items()},
        boot={name: round(value, 3) for name, value in best["boot"].items()},
    )


def _reason(stderr: str) -> str:
    """The message of octavo's own error, all its lines; of any other the last line."""
    _, ours, tail = stderr.rpartition("\noctavo.errors.")
    if ours:
        return tail.partition(": ")[2].strip()
    return (stderr.strip().splitlines() or ["no message"])[-1]
