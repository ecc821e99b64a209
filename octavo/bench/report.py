"""Records: one JSON line a measurement, with what is needed to trust and repeat it; and short tables of them."""

import json
import platform
import resource
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from octavo import __version__
from octavo.common import probe
from octavo.config import env
from octavo.errors import ConfigError


@lru_cache(maxsize=1)
def machine() -> str:
    """The machine in words: cores, processor, memory, and its best vector instructions."""
    cpu = probe.cpu()
    best = next((word for word in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if word in cpu.flags), "")
    memory = probe.memory().total / 2**30
    return f"{probe.cores()} cores, {cpu.name}{f' ({best})' if best else ''}, {memory:.0f} GiB"


@lru_cache(maxsize=1)
def commit() -> str:
    """The checkout's commit, with a + where tracked files differ from it; the version where there is no checkout."""
    root = Path(__file__).resolve().parents[2]
    try:
        run = lambda *args: subprocess.run(  # noqa: E731
            ["git", "-C", str(root), *args], capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()
        changed = run("status", "--porcelain", "--untracked-files=no", "--", "octavo")
        return run("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return env.read("OCTAVO_COMMIT") or f"octavo {__version__}"


@lru_cache(maxsize=1)
def gpu() -> str | None:
    """The first GPU's name, None where there is none."""
    if "torch" not in sys.modules:
        found = probe.gpus()
        return found[0].name if found else None
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None


def peak_rss_mb() -> float:
    """The most memory that this process and the largest of its ended children held, in MB."""
    both = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return round(max(both) / (1024 if sys.platform != "darwin" else 2**20), 1)


def _public(words: Sequence[str]) -> list[str]:
    """A command line as records keep it: without keys and headers, and without where the record itself went."""
    shown: list[str] = []
    before, headers = "", False
    for word in words:
        name, equals, _ = word.partition("=")
        name = name.replace("_", "-")
        headers = name == "--header" if word.startswith("--") else headers
        if headers and equals:
            shown.append(f"{name}=...")
        elif "--output-json" not in (name, before):
            secret = before == "--api-key" or (name == "--api-key" and equals)
            shown.append(f"{name}=..." if secret and equals else "..." if secret else word)
        before = "" if equals else name
    return shown


def record(**values: Any) -> dict[str, Any]:
    """A record: what every measurement says of its circumstances, then ``values``."""
    command = "octavo " + " ".join(shlex.quote(arg) for arg in _public(sys.argv[1:]))
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    about = {"date": stamp, "gpu": gpu(), "machine": machine(), "commit": commit(), "command": command}
    return about | {"python": platform.python_version()} | values


def write(records: Iterable[dict[str, Any]], path: str | None) -> None:
    """Append the records to ``path`` as JSON lines; nothing where it is None. Raises ``ConfigError``."""
    if not path:
        return
    try:
        with open(path, "a") as file:
            for one in records:
                file.write(json.dumps(one) + "\n")
    except OSError as error:
        raise ConfigError(f"--output-json {path} cannot be written: {error.strerror}") from None


def percentile(values: Sequence[float], q: float) -> float:
    """The q-th percentile (0 to 100), interpolated; nan of nothing."""
    if not values:
        return float("nan")
    if len(values) == 1:
        return values[0]
    ordered = sorted(values)
    place = (len(ordered) - 1) * q / 100
    low = int(place)
    return ordered[low] + (ordered[min(low + 1, len(ordered) - 1)] - ordered[low]) * (place - low)


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else float("nan")


def table(records: Sequence[dict[str, Any]], columns: Sequence[str]) -> str:
    """The records as a table for a terminal; a column that no record has is left out."""
    columns = [name for name in columns if any(one.get(name) is not None for one in records)]
    cells = [columns, *([_cell(one.get(name)) for name in columns] for one in records)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
