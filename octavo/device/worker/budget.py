"""Where a GPU's memory goes: what others hold, weights, what steps need, graphs, and the KV cache, which gets the rest.

The rule, after loading and worst-case steps: ``kv = utilization * total - (total - free) - activations - graphs -
margin``. ``total - free`` holds everything that is there now: other processes, the driver's context, the weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from octavo.common.words import size
from octavo.config.engine import CacheSection, ScheduleSection
from octavo.device.attention.base import AttentionBackend
from octavo.device.models.base import CausalLM
from octavo.device.platforms.base import Platform
from octavo.device.runner.decode import SIZES, padded
from octavo.device.worker.trial import run_trial
from octavo.errors import OutOfMemory

#: What is left free for what nobody foresaw: fragments, libraries that load late.
MARGIN = 256 << 20
#: What the driver keeps of a captured size, beside the pool that all sizes share.
GRAPH = 8 << 20
#: Sizes of steps with pieces of prompt that are allowed for.
MIXED = 32


@dataclass(frozen=True)
class Budget:
    """Bytes. ``held``: what is in use after loading, the weights among it."""

    total: int
    held: int
    activations: int
    graphs: int
    margin: int
    kv: int


def measure(
    model: CausalLM,
    platform: Platform,
    backends: Mapping[str, AttentionBackend],
    cache: CacheSection,
    schedule: ScheduleSection,
    dtype: torch.dtype,
    graphs: bool,
    positions: int,
) -> Budget:
    """Run the largest steps there may be: one of nothing but prompts, with every row drawing at its end, and one decode
    of all rows. ``positions``: of the longest request. Raises ``OutOfMemory`` that names the flag value that would
    fit."""
    rows = schedule.max_num_seqs
    longest = min(schedule.max_num_batched_tokens, rows * positions)
    platform.reset_peak()
    before = platform.used_memory()
    try:
        run_trial(model, platform, backends, dtype, longest, rows=min(rows, longest), hot=True, positions=positions)
        activations = platform.peak_memory() - before
        platform.reset_peak()
        pool = 0
        if graphs:
            run_trial(model, platform, backends, dtype, rows, rows=rows, hot=True, decode=True, positions=positions)
            pool = max(platform.peak_memory() - before, activations)
            pool += GRAPH * (MIXED + sum(1 for one in SIZES if one <= padded(rows)))
            platform.reset_peak()
    except torch.OutOfMemoryError as error:
        fewer = max(longest // 2, 1)
        raise OutOfMemory(
            f"a step of {longest} tokens does not fit beside the weights on {platform.describe()}: "
            f"--max-num-batched-tokens {fewer} --max-num-seqs {min(rows, fewer)} would need about half"
        ) from error
    total, free = platform.total_memory(), platform.free_memory()
    other = activations + pool + MARGIN
    kv = int(cache.utilization * total) - (total - free) - other
    if cache.memory is not None:
        kv = cache.memory
        if kv > free - other:
            raise OutOfMemory(
                f"--kv-cache-memory {kv} ({size(kv)}) does not fit on {platform.describe()}: {size(free)} are free, "
                f"of which steps and graphs take {size(other)}; at most --kv-cache-memory {max(free - other, 0)} would"
            )
    return Budget(total, total - free, activations, pool, MARGIN, kv)
