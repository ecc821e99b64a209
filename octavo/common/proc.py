"""Child processes that never outlive their parent, and whose death the parent can see on a file descriptor. Linux."""

import ctypes
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, TypeVar

T = TypeVar("T")
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
#: In the number of a clock: it is a thread's, not a process's, and counts what the scheduler gave it.
_CPU_CLOCK_OF_THREAD = 4 | 2


def title(name: str) -> None:
    """Name this process (its main thread) for ``ps`` and ``top``; 15 bytes are shown."""
    _prctl(_PR_SET_NAME, ctypes.create_string_buffer(name.encode()[:15]))


def _prctl(option: int, value: Any) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def stand_back(nice: int) -> None:
    """Lower the priority of the calling thread to ``nice`` at least; children and threads that it starts inherit it."""
    thread = threading.get_native_id()
    if os.getpriority(os.PRIO_PROCESS, thread) < nice:
        os.setpriority(os.PRIO_PROCESS, thread, nice)


def _threads() -> set[str]:
    """Numbers of this process's threads; none where the system does not tell them."""
    try:
        return set(os.listdir("/proc/self/task"))
    except OSError:
        return set()


def clocked(start: Callable[[], T]) -> tuple[T, Callable[[], float]]:
    """``start()``, which starts a thread, and a clock of the seconds that this thread has used of a processor. Where it
    cannot be told which one that is (another was started at the same time, or this is no Linux), the clock is the
    wall's."""
    before = _threads()
    started = start()
    fresh = _threads() - before
    if len(fresh) != 1:
        return started, time.monotonic
    number = (~int(fresh.pop()) << 3) | _CPU_CLOCK_OF_THREAD
    return started, lambda: time.clock_gettime(number)


class Child:
    """A running child. ``fd`` becomes readable when it ends."""

    def __init__(self, process: subprocess.Popen, life: int):
        self._process = process
        self._life = life
        self.pid = process.pid
        self.fd = os.pidfd_open(process.pid)

    def alive(self) -> bool:
        return self._process.poll() is None

    def wait(self, timeout: float) -> bool:
        """Whether it ended within ``timeout`` seconds."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    @property
    def killed(self) -> bool:
        """Whether a signal ended it."""
        return (self._process.poll() or 0) < 0

    def end_text(self) -> str:
        """How it ended, for people."""
        code = self._process.poll()
        if code is None:
            return "is still running"
        if code >= 0:
            return f"ended with exit code {code}"
        name = signal.Signals(-code).name
        hint = "; was there too little memory?" if name == "SIGKILL" else ""
        return f"was ended by {name}{hint}"

    def terminate(self) -> None:
        """Ask it to end (SIGTERM)."""
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        """End it for certain and forget it. May be called twice."""
        if self._life >= 0:
            os.close(self._life)
            self._life = -1
            self._process.kill()
            self._process.wait()
            os.close(self.fd)


def spawn(target: str, argument: Any, *, name: str, fds: Sequence[int] = ()) -> Child:
    """Run ``module:function`` with one picklable argument in a fresh interpreter called ``name``.

    The child ends when this process does, however that ends: it holds the other end of a pipe, and the kernel signals
    it (only when it was started from the main thread: the signal is about the thread, not the process). It ignores
    SIGINT, which a terminal sends to everybody: the parent decides. ``fds``: open files that the child gets too, under
    the same numbers.
    """
    main = threading.current_thread() is threading.main_thread()
    payload = os.memfd_create("octavo-child")
    watched, life = os.pipe()
    try:
        with os.fdopen(os.dup(payload), "wb") as file:
            pickle.dump((sys.path, target, name, main, os.getpid()), file)
            pickle.dump(argument, file)
        os.lseek(payload, 0, os.SEEK_SET)
        code = "from octavo.common.proc import _enter; _enter()"
        command = [sys.executable, "-c", code, str(payload), str(watched)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(payload, watched, *fds))
    except BaseException:
        os.close(life)
        raise
    finally:
        os.close(payload)
        os.close(watched)
    return Child(process, life)


def _enter() -> None:
    """The first function of a child."""
    payload, watched = int(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with os.fdopen(payload, "rb") as file:
        path, target, name, main, parent = pickle.load(file)
        sys.path[:] = path
        title(name)
        if main:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it ended before the kernel was told
                os._exit(1)
        threading.Thread(target=_follow, args=(watched,), name="octavo-parent", daemon=True).start()
        argument = pickle.load(file)
    sys.argv[1:] = []
    module, _, function = target.partition(":")
    getattr(import_module(module), function)(argument)


def _follow(watched: int) -> None:
    """End with the parent: nobody writes to the pipe, so a read returns only when its other end is gone."""
    os.read(watched, 1)
    os._exit(1)
