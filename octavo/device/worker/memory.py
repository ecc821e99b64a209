"""How much memory the KV cache may take: what is free, less what a step needs."""

from collections.abc import Iterable, Iterator, Mapping

import torch

from octavo.common.words import size
from octavo.config.engine import CacheSection, ScheduleSection
from octavo.device.attention.base import AttentionBackend
from octavo.device.models.base import CausalLM
from octavo.device.platforms.base import Platform
from octavo.device.worker.trial import run_trial

#: Most that a CPU's KV cache takes unless it is told otherwise, and its share of what is free.
CPU_KV = 4 << 30
CPU_SHARE = 0.5
CPU_RULE = f"{CPU_SHARE:.0%} of what is free then, {size(CPU_KV)} at most"
#: Tokens of the trial step; what it takes is scaled up to the longest step.
TRIAL = 128


def weight_bytes(model: CausalLM) -> int:
    """Bytes of the tensors that the model, its layers and their methods hold, each once."""
    found: dict[int, int] = {}
    for value in tensors(model):
        key = value.data_ptr() if value.layout == torch.strided else id(value)
        found[key] = value.numel() * value.element_size()
    return sum(found.values())


def tensors(model: CausalLM) -> Iterator[torch.Tensor]:
    """Every tensor that the model, its layers and their methods hold."""
    seen: set[int] = set()
    pending: list[object] = [model]
    while pending:
        value = pending.pop()
        if isinstance(value, torch.Tensor):
            yield value
        elif id(value) not in seen:
            seen.add(id(value))
            pending += _parts(value)


def _parts(value: object) -> Iterable[object]:
    """What a collection or an object of this package holds."""
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, list | tuple):
        return value
    return vars(value).values() if type(value).__module__.startswith("octavo.") and hasattr(value, "__dict__") else ()


def activation_bytes(
    model: CausalLM,
    platform: Platform,
    backends: Mapping[str, AttentionBackend],
    schedule: ScheduleSection,
    dtype: torch.dtype,
    positions: int,
) -> int:
    """Bytes that the largest step takes beside weights and cache, by a trial step: its peak, scaled to the budget of
    tokens, and the logits of all rows. ``positions``: of the longest request."""
    longest = schedule.max_num_batched_tokens
    tokens = min(longest, TRIAL, positions)
    run_trial(model, platform, backends, dtype, min(8, tokens))  # what is made on first use is no activation
    before = platform.used_memory()
    platform.reset_peak()
    run_trial(model, platform, backends, dtype, tokens)
    peak = max(platform.peak_memory() - before, 0)
    return peak * longest // tokens + 8 * schedule.max_num_seqs * model.facts.vocab


def kv_bytes(platform: Platform, section: CacheSection, activations: int) -> tuple[int, str]:
    """Bytes for the cache and a word on why: what was asked for, else ``CPU_RULE``."""
    if section.memory is not None:
        return section.memory, "as asked"
    free = max(platform.free_memory() - activations, 0)
    return min(CPU_KV, int(free * CPU_SHARE)), CPU_RULE


def gpu_rule(utilization: float) -> str:
    return f"what {utilization:.0%} of the GPU leaves"
