"""Servers as children of a benchmark: started, watched, ended; what their processes take."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from octavo.errors import ConfigError

#: No start takes longer without something being wrong.
START_WITHIN = 600.0
_END_WITHIN = 30.0
#: Lines that an error of a failed start holds: a traceback's end with what went before it.
_TOLD = 20
#: What the names of API processes begin with.
_API = "octavo-api-"


class Child:
    """``python -m module args`` in a session of its own, once it says where it serves. A context manager.

    Raises ``ConfigError`` with the last lines that it said where it does not come to serve.
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
        told = "\n".join(self.said[-_TOLD:])
        raise ConfigError(f"the start failed: {told or 'no message'}")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said.append(line.rstrip())
            del self.said[:-200]

    def processes(self) -> dict[int, list[str]]:
        """The living processes of its session, with their names and the fields of /proc/PID/stat behind those."""
        found = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
            except OSError:  # it ended meanwhile
                continue
            fields = rest.split()
            if int(fields[3]) == self.pid and fields[0] != "Z":
                found[int(stat.parent.name)] = [name, *fields]
        return found

    def apis(self) -> list[int]:
        """The API processes, where there are several."""
        return [pid for pid, fields in self.processes().items() if fields[0].startswith(_API)]

    def _by_floor(self, value: Callable[[list[str]], float]) -> dict[str, float]:
        """Sums of ``value`` over the front (the leader, and API processes) and over all the others."""
        found = {"front": 0.0, "engine": 0.0}
        for pid, fields in self.processes().items():
            found["front" if pid == self.pid or fields[0].startswith(_API) else "engine"] += value(fields)
        return found

    def cpu_seconds(self) -> dict[str, float]:
        """Processor time so far of the front and of all the others."""
        tick = os.sysconf("SC_CLK_TCK")
        return self._by_floor(lambda fields: (int(fields[12]) + int(fields[13])) / tick)

    def memory_mb(self) -> dict[str, float]:
        """Resident memory, in MB, of the front and of all the others."""
        page = os.sysconf("SC_PAGE_SIZE") / 2**20
        held = self._by_floor(lambda fields: int(fields[22]) * page)
        return {name: round(size, 1) for name, size in held.items()}

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
