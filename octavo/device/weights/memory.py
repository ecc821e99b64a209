"""Whether the weights fit, asked before they are allocated."""

import math
from pathlib import Path

import torch

from octavo.common.words import size
from octavo.errors import OutOfMemory


def check(shapes: dict[str, tuple[int, ...]], device: torch.device, dtype: torch.dtype) -> None:
    """Raise ``OutOfMemory`` when tensors of these shapes are more than the device has free."""
    need = sum(math.prod(shape) for shape in shapes.values()) * dtype.itemsize
    free = available(device)
    if free is not None and need > free:
        narrower = "" if dtype.itemsize == 2 else "; --dtype bfloat16 would need half"
        raise OutOfMemory(
            f"the weights need {size(need)} as {str(dtype)[6:]}, and {device} has {size(free)} free{narrower}"
        )


def available(device: torch.device) -> int | None:
    """Bytes that this process may still take on a device; None where nobody says."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    limits = [value for value in (_meminfo(), _cgroup()) if value is not None]
    return min(limits) if limits else None


def _meminfo() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def _cgroup() -> int | None:
    """Limit less use of this process's control group (v2), page cache not counted."""
    root = Path("/sys/fs/cgroup")
    try:
        limit = (root / "memory.max").read_text().strip()
        used = int((root / "memory.current").read_text())
        stat = dict(line.split() for line in (root / "memory.stat").read_text().splitlines())
        return None if limit == "max" else int(limit) - used + int(stat.get("inactive_file", 0))
    except (OSError, ValueError):
        return None
