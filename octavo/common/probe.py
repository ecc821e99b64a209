"""What this machine has, without torch: cores and memory, within the limits that a container sets."""

import ctypes
import importlib.util
import os
import platform
import re
import shutil
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

_CGROUP = Path("/sys/fs/cgroup")


class Memory(NamedTuple):
    """Bytes of main memory: all of it, and what could be had now."""

    total: int
    free: int


class CPU(NamedTuple):
    """``name``: for people. ``flags``: the kernel's names of its abilities."""

    name: str
    flags: frozenset[str]


class GPU(NamedTuple):
    """``memory``: bytes. ``capability``: (major, minor) of its instructions."""

    name: str
    memory: int
    capability: tuple[int, int]


#: Names of the driver's cuDeviceGetAttribute.
_MAJOR, _MINOR = 75, 76


@lru_cache(maxsize=1)
def gpus() -> tuple[GPU, ...]:
    """NVIDIA GPUs that this process may use (``CUDA_VISIBLE_DEVICES``), as the driver tells; none where the installed
    torch is not built for them. Nothing is started on them."""
    if not _torch_has_cuda():
        return ()
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ()
    count = ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return ()
    found = []
    for index in range(count.value):
        device, size, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(100)
        parts = ctypes.c_int(), ctypes.c_int()
        if (
            cuda.cuDeviceGet(ctypes.byref(device), index)
            or cuda.cuDeviceGetName(name, len(name), device)
            or cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device)
            or cuda.cuDeviceGetAttribute(ctypes.byref(parts[0]), _MAJOR, device)
            or cuda.cuDeviceGetAttribute(ctypes.byref(parts[1]), _MINOR, device)
        ):
            return ()
        found.append(GPU(name.value.decode(), size.value, (parts[0].value, parts[1].value)))
    return tuple(found)


def _torch_has_cuda() -> bool:
    """Whether the installed torch is a build for CUDA: its library is there. torch itself is not imported."""
    spec = importlib.util.find_spec("torch")
    folders = spec.submodule_search_locations if spec is not None else None
    return any((Path(folder) / "lib" / "libtorch_cuda.so").exists() for folder in folders or ())


@lru_cache(maxsize=1)
def cpu() -> CPU:
    """The processor, as the kernel tells."""
    try:
        return _cpu(Path("/proc/cpuinfo").read_text())
    except OSError:
        return _cpu("")


def _cpu(info: str) -> CPU:
    known: dict[str, str] = {}
    for line in info.splitlines():
        key, _, value = line.partition(":")
        known.setdefault(key.strip(), value.strip())
    flags = known.get("flags") or known.get("Features") or ""
    return CPU(known.get("model name") or platform.processor() or platform.machine(), frozenset(flags.split()))


def compiler() -> str | None:
    """The C compiler that Triton would call, None where there is none."""
    return os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")


def cores() -> int:
    """CPU cores that this process may use: its affinity, cut to a cgroup's quota, at least 1."""
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _words(_CGROUP / "cpu.max")
    if len(quota) == 2 and quota[0].isdigit() and int(quota[1]):
        mine = min(mine, max(1, int(quota[0]) // int(quota[1])))
    return max(mine, 1)


def memory() -> Memory:
    """Main memory, cut to a cgroup's limit."""
    total, free = _machine_memory()
    for limit_file, used_file, stat_file in (
        ("memory.max", "memory.current", "memory.stat"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
    ):
        limit, used = _number(_CGROUP / limit_file), _number(_CGROUP / used_file)
        if limit is not None and used is not None and limit < total:
            total = limit
            free = min(free, max(limit - used + _reclaimable(_CGROUP / stat_file), 0))
    return Memory(total, free)


def _machine_memory() -> tuple[int, int]:
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return total, total // 2
    kib = {key: int(value) for key, value in re.findall(r"^(\w+):\s+(\d+) kB", text, re.M)}
    return kib["MemTotal"] * 1024, kib.get("MemAvailable", kib["MemFree"]) * 1024


def _reclaimable(stat: Path) -> int:
    """Bytes of file cache that the kernel gives back when it is asked."""
    words = _words(stat)
    return sum(int(value) for key, value in zip(words[::2], words[1::2], strict=False) if key == "inactive_file")


def _number(path: Path) -> int | None:
    words = _words(path)
    return int(words[0]) if words and words[0].isdigit() else None


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
