"""A trace of steps by torch's profiler, for chrome://tracing, Perfetto or TensorBoard."""

import os
import time
from pathlib import Path
from typing import Any

import torch

from octavo.common.log import logger
from octavo.errors import BadRequest

_log = logger(__name__)


class Profiler:
    """One trace at a time, started and stopped in the thread that runs the steps."""

    def __init__(self) -> None:
        self._running: Any = None
        self._folder = Path()

    def call(self, what: str, folder: str = "", with_stack: bool = False, record_shapes: bool = False) -> str:
        """ "start" writing into ``folder``, or "stop": the path of the trace. Raises ``BadRequest``."""
        if what == "start":
            return self._start(Path(folder), with_stack, record_shapes)
        if what == "stop":
            return self.stop()
        raise ValueError(f"profile is told to start or stop, not {what!r}")

    def _start(self, folder: Path, with_stack: bool, record_shapes: bool) -> str:
        if self._running is not None:
            raise BadRequest("a profile is being taken already; stop it first")
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_initialized():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        found = torch.profiler.profile(activities=activities, with_stack=with_stack, record_shapes=record_shapes)
        found.start()
        self._running, self._folder = found, folder
        return ""

    def stop(self) -> str:
        """Raises ``BadRequest`` where no profile is taken, or its trace cannot be written."""
        if self._running is None:
            raise BadRequest("no profile is being taken")
        found, self._running = self._running, None
        found.stop()
        path = self._folder / f"octavo-{os.getpid()}-{time.time_ns() // 1_000_000}.pt.trace.json.gz"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            found.export_chrome_trace(str(path))
        except (OSError, RuntimeError) as error:
            raise BadRequest(f"the trace cannot be written to {self._folder}: {error}") from None
        _log.info("a profile was written to %s", path)
        return str(path)
