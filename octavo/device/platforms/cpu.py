"""The CPU: memory from /proc and cgroups, threads, and streams that do nothing since work is done when it returns."""

import ctypes
import gc
import mmap
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from octavo.common import probe
from octavo.errors import OutOfMemory

#: Names of glibc's mallopt.
_M_MXFAST, _M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = 1, -1, -3


class NullEvent:
    """Work on a CPU has happened when the call returns."""

    def record(self, stream: "NullStream | None" = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class NullStream:
    """The order of calls is the order of work."""

    def wait_event(self, event: NullEvent) -> None:
        pass

    def synchronize(self) -> None:
        pass


class CPU:
    """Platform: this machine's processor."""

    name = "cpu"
    can_store_to_host = True
    graphs = False
    asynchronous = False
    attention = ("cpu",)

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def describe(self) -> str:
        return f"{probe.cpu().name}, {probe.cores()} cores, {torch.get_num_threads()} threads"

    def start(self, threads: int | None) -> None:
        torch.set_num_threads(threads or probe.cores())

    def enter(self) -> None:
        pass

    def settle(self) -> None:
        gc.collect()
        try:
            malloc = ctypes.CDLL(None).mallopt
        except (OSError, AttributeError):
            return  # not glibc
        # What a step lets go comes again in the next one, and the heap keeps it: by itself glibc gives blocks over
        # 32 MiB back to the kernel, and logits of 64 rows over 151,936 tokens then take 40 ms instead of 10, for 19,000
        # fresh pages. Without fast bins, oneDNN's large requests do not sweep them together: 5 to 8 % of a step.
        malloc(_M_MMAP_THRESHOLD, 1 << 30)
        malloc(_M_TRIM_THRESHOLD, 256 << 20)
        malloc(_M_MXFAST, 0)

    def supports(self, dtype: torch.dtype) -> str | None:
        if dtype in (torch.float32, torch.bfloat16, torch.float16):
            return None
        return f"a CPU computes in float32, bfloat16 or float16, not in {str(dtype).removeprefix('torch.')}"

    def free_memory(self) -> int:
        return probe.memory().free

    def total_memory(self) -> int:
        return probe.memory().total

    def used_memory(self) -> int:
        return _status("VmRSS")

    def reset_peak(self) -> None:
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            pass  # the peak is then that of the whole process: an upper bound

    def peak_memory(self) -> int:
        return _status("VmHWM")

    def allocate(self, size: int) -> torch.Tensor:
        try:
            return torch.frombuffer(mmap.mmap(-1, max(size, 1)), dtype=torch.uint8)[:size]
        except (OSError, OverflowError) as error:
            raise OutOfMemory(f"{size} bytes of memory are more than this machine gives: {error}") from None

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(tuple(shape), dtype=dtype)

    def stream(self) -> NullStream:
        return NullStream()

    def event(self) -> NullEvent:
        return NullEvent()

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        return run  # there is nothing to record: the calls are the work

    def idle(self) -> bool:
        return True


def _status(key: str) -> int:
    """A line of /proc/self/status, in bytes; 0 where there is none."""
    try:
        found = re.search(rf"^{key}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    except OSError:
        found = None
    return int(found[1]) * 1024 if found else 0
