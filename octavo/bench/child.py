"""Servers as children of a benchmark: started, watched, ended; what their processes take."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from octavo.errors import ConfigError

#: No start takes longer without something being wrong.
START_WITHIN = 600.0
_END_WITHIN = 30.0


class Child:
    """``python -m module args`` in a session of its own, once it says where it serves. A context manager.

    Raises ``ConfigError`` with the last that it said where it does not come to serve.
    """

    def __init__(self, module: str, args: Sequence[str]):
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *args, "--host", "127.0.0.1", "--port", "0", "--disable-access-log"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.said: list[str] = []
        alarm = threading.Timer(START_WITHIN, self._process.kill)
        alarm.start()
        try:
            self.url = self._url()
        finally:
            alarm.cancel()
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def port(self) -> int:
        return int(self.url.rstrip("/").rpartition(":")[2])

    def _url(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := re.match(r"octavo serves .* at (\S+)", line):
                return found[1]
            self.said.append(line.rstrip())
        raise ConfigError(f"the start failed: {self.said[-1] if self.said else 'no message'}")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said.append(line.rstrip())
            del self.said[:-200]

    def processes(self) -> dict[int, list[str]]:
        """The living processes of its session, with the fields of /proc/PID/stat behind the name."""
        found = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:  # it ended meanwhile
                continue
            if int(fields[3]) == self.pid and fields[0] != "Z":
                found[int(stat.parent.name)] = fields
        return found

    def cpu_seconds(self) -> dict[str, float]:
        """Processor time so far of the front (the leader) and of all the others."""
        tick = os.sysconf("SC_CLK_TCK")
        spent = {pid: (int(fields[11]) + int(fields[12])) / tick for pid, fields in self.processes().items()}
        return {"front": spent.pop(self.pid, 0.0), "engine": sum(spent.values())}

    def memory_mb(self) -> dict[str, float]:
        """Resident memory, in MB, of the front and of all the others."""
        page = os.sysconf("SC_PAGE_SIZE") / 2**20
        held = {pid: int(fields[21]) * page for pid, fields in self.processes().items()}
        return {"front": round(held.pop(self.pid, 0.0), 1), "engine": round(sum(held.values()), 1)}

    def wait(self, timeout: float) -> int | None:
        """Its exit status; None where it has not ended within ``timeout`` seconds."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.terminate()
        if self.wait(_END_WITHIN) is None:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
