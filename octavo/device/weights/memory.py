"""Whether the weights fit, asked before they are allocated."""

from pathlib import Path

import torch

from octavo.common.words import size
from octavo.config.facts import ModelFacts
from octavo.errors import OutOfMemory


def weight_bytes(facts: ModelFacts, dtype: torch.dtype) -> int:
    """Bytes of a model's matrices and rope tables; vectors are less than a thousandth of them."""
    q, kv = facts.q_heads * facts.head_dim, facts.kv_heads * facts.head_dim
    layer = facts.hidden * (2 * q + 2 * kv) + 3 * facts.hidden * facts.ffn
    numbers = facts.layers * layer + facts.vocab * facts.hidden * (1 if facts.tied else 2)
    ropes = 1 if facts.local_rope is None else 2
    return numbers * dtype.itemsize + ropes * facts.max_positions * facts.head_dim * 4


def check(facts: ModelFacts, device: torch.device, dtype: torch.dtype) -> None:
    """Raise ``OutOfMemory`` when the model takes more than the device has free."""
    need, free = weight_bytes(facts, dtype), available(device)
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
