"""Triton kernels compiled ahead: processes fill Triton's cache on disk while weights are read, so that a kernel's first
use only loads it.

The processes need no GPU. A kernel is asked for as a launch would ask, with stand-ins for its tensors, for a target
that is given by hand: the key in the cache is that of the launch. Triton calls a kernel through a few lines of C, one
library for each kind of argument list, which are compiled here too; where no driver is, against a stand-in of it.
"""

import contextlib
import ctypes
import json
import os
import pickle
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.common import probe
from octavo.common.log import logger
from octavo.common.proc import Child, spawn

if TYPE_CHECKING:  # with it comes torch, which the processes do without
    from octavo.device.kernels.variants import Variant

_log = logger(__name__)

#: Most processes. Each takes 300 MB.
MOST = 16
#: Seconds without a word of any process after which nobody waits for them.
PATIENCE = 60.0
#: Bytes of a number in the pipe of tasks: what a pipe holds is read whole by one reader.
_WORD = 4


@dataclass(frozen=True)
class Setup:
    """What a process is told. ``folder``: of the tasks, a file each, and of a stand-in of the driver's library where
    there is none. ``tasks``, ``reports``: the process's ends of two pipes, of numbers of tasks and of lines of JSON."""

    capability: tuple[int, int]
    folder: str
    tasks: int
    reports: int


@dataclass
class Outcome:
    """``compiled``, ``found``: variants that were not in the cache, and that were. ``failed``: what went wrong."""

    compiled: int = 0
    found: int = 0
    failed: list[str] = field(default_factory=list)


class Warming:
    """Processes that compile what is added, in that order. They end when all is done after ``seal``, or with
    ``close``. ``count``: how much was added."""

    def __init__(self, capability: tuple[int, int], processes: int | None = None):
        self.outcome = Outcome()
        self._begun = time.monotonic()
        self._folder = Path(tempfile.mkdtemp(prefix="octavo-warm-"))
        self._seen: set[tuple] = set()
        self._pending: set[int] = set()
        self.count = 0
        self._text = b""
        self._children: list[Child] = []
        tasks, self._tasks = os.pipe()
        self._reports, reports = os.pipe()
        os.set_blocking(self._tasks, False)
        try:
            if not _has_driver():
                _write_stub(self._folder)
            self._add(("", "", (), (), True))
            setup = Setup(capability, str(self._folder), tasks, reports)
            for _ in range(processes or min(MOST, probe.cores())):
                self._children.append(spawn(f"{__name__}:main", setup, name="octavo-warm", fds=(tasks, reports)))
        except BaseException:
            self.close()
            raise
        finally:
            os.close(tasks)
            os.close(reports)

    def add(self, variants: "Iterable[Variant]") -> None:
        """Have them compiled, after what was added before. One that was added before is not added again."""
        for one in variants:
            args = tuple(tuple(arg) if isinstance(arg, tuple) else arg for arg in one.args)
            whole = one.module, one.name, args, one.options
            called = one.module, one.name, *map(_kind, args)
            if whole not in self._seen:
                self._add((*whole, called not in self._seen))
                self._seen |= {whole, called}

    def _add(self, task: tuple) -> None:
        (self._folder / str(self.count)).write_bytes(pickle.dumps(task))
        with contextlib.suppress(BrokenPipeError):  # every process has ended, as who waits for it is told
            os.write(self._tasks, self.count.to_bytes(_WORD, "little"))  # 16,384 fit
        self._pending.add(self.count)
        self.count += 1

    def seal(self) -> None:
        """Nothing more will be added."""
        if self._tasks >= 0:
            os.close(self._tasks)
            self._tasks = -1

    @property
    def done(self) -> bool:
        """Whether all that was added is there, or failed."""
        while self._read(0.0):
            pass
        return not self._pending

    def wait(self, count: int | None = None) -> None:
        """Until all that was added is there, or the first ``count``, or no process gets on."""
        until = time.monotonic() + PATIENCE
        while (left := sum(count is None or number < count for number in self._pending)) and time.monotonic() < until:
            if self._read(1.0):
                until = time.monotonic() + PATIENCE
        if left:
            _log.warning("%d kernels were not compiled ahead: the processes do not get on", left)

    def told(self) -> str:
        """What came of it, for people."""
        outcome, seconds, many = self.outcome, time.monotonic() - self._begun, len(self._children)
        text = f"{outcome.compiled} kernels compiled in {seconds:.1f} s by {many} process{'es' * (many > 1)}"
        if outcome.found:
            text += f", {outcome.found} were there"
        if outcome.failed:
            text += f"; {len(outcome.failed)} failed: {outcome.failed[0]}"
        return text

    def close(self) -> None:
        """End what still runs. May be called twice."""
        self.seal()
        for child in self._children:
            child.close()
        if self._reports >= 0:
            os.close(self._reports)
            self._reports = -1
        shutil.rmtree(self._folder, ignore_errors=True)

    def _read(self, timeout: float) -> bool:
        """Take in what is told within ``timeout`` seconds; whether there was anything."""
        if self._reports < 0 or not self._pending or not select.select([self._reports], [], [], timeout)[0]:
            return False
        piece = os.read(self._reports, 1 << 16)
        if not piece:  # every process has ended
            self.outcome.failed += ["the process for it ended"] * len(self._pending)
            self._pending.clear()
        *lines, self._text = (self._text + piece).split(b"\n")
        for line in lines:
            number, found, error = json.loads(line)
            self._pending.discard(number)
            if error is not None:
                self.outcome.failed.append(error)
            elif found is not None:
                self.outcome.found += found
                self.outcome.compiled += not found
        return True


def _kind(arg: tuple | int | float) -> str:
    """What the C code that calls a kernel depends on."""
    if isinstance(arg, tuple):
        return "*"
    if isinstance(arg, float):
        return "f"
    return "1" if arg == 1 else "i32" if -(1 << 31) <= arg < 1 << 31 else "i64"


# The processes.


def main(setup: Setup) -> None:
    """Compile what is taken from the pipe of tasks, and tell."""
    os.nice(10)
    sys.modules["torch"] = None  # type: ignore[assignment]  # Triton would import it to tell tensors from numbers
    from octavo.device.kernels import triton as kernels  # noqa: F401  (sets the manager of the cache)

    _pretend(setup.capability)
    if os.path.exists(stub := f"{setup.folder}/libcuda.so.1"):
        from triton import knobs

        knobs.nvidia.libcuda_path = setup.folder
        ctypes.CDLL(stub, ctypes.RTLD_GLOBAL)
    while word := os.read(setup.tasks, _WORD):
        number = int.from_bytes(word, "little")
        name, found, error = "", None, None
        try:
            module, name, args, options, call = pickle.loads(Path(setup.folder, str(number)).read_bytes())
            if name:
                found = _compile(module, name, args, options, call)
            else:
                _build_loader()
        except Exception as failure:
            error = f"{name or 'the loader'}: {type(failure).__name__}: {failure}"[:400]
        os.write(setup.reports, json.dumps((number, found, error)).encode() + b"\n")


def _compile(module: str, name: str, args: tuple, options: tuple, call: bool) -> bool:
    """Whether a variant was in the cache; else it is now, and with ``call`` what calls it."""
    from triton import knobs

    seen: list[bool] = []
    knobs.compilation.listener = lambda *, cache_hit, **_: seen.append(cache_hit)
    kernel = getattr(import_module(module), name)
    given = [_Memory(*arg) if isinstance(arg, tuple) else arg for arg in args]
    made = kernel.warmup(*given, grid=(1,), **dict(options))
    if call:
        from triton.backends.nvidia.driver import CudaLauncher

        CudaLauncher(made.src, made.metadata)
    return all(seen)


def _build_loader() -> None:
    """What loads kernels, which Triton builds with its first one."""
    from triton.backends.nvidia.driver import CudaUtils

    CudaUtils()


class _Memory:
    """Stands for a tensor: Triton asks its type, and whether its address is a multiple of 16."""

    def __init__(self, dtype: str, aligned: bool):
        self.dtype = dtype
        self.data_ptr = partial(int, 0 if aligned else 4)


def _pretend(capability: tuple[int, int]) -> None:
    """Make Triton compile for a GPU of this kind, whatever is here."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    class Driver:
        """Of a device that nothing is launched on."""

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int) -> int:
            return 0

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", 10 * capability[0] + capability[1], 32)

    driver.set_active(Driver())


# A stand-in of the driver.


def _has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _names() -> Iterator[str]:
    """Functions of the driver that Triton's C code calls by name."""
    from importlib.util import find_spec

    spec = find_spec("triton")
    if spec is None or spec.origin is None:
        return
    for path in (Path(spec.origin).parent / "backends" / "nvidia").glob("driver.*"):
        yield from re.findall(r"\b(cu[A-Z]\w*)\s*\(", path.read_text(encoding="utf-8", errors="replace"))


def _write_stub(folder: Path) -> None:
    """A libcuda.so.1 that does nothing, to link with. What is linked asks for the real one where it is loaded."""
    cc = probe.compiler()
    if cc is None:
        return
    source = folder / "stub.c"
    source.write_text("".join(f"int {name}(void) {{ return 1; }}\n" for name in sorted(set(_names()))))
    subprocess.run(
        [cc, str(source), "-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", "-o", str(folder / "libcuda.so.1")],
        check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE,
    )  # fmt: skip
