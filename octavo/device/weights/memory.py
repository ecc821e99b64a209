"""Whether the weights fit, asked before they are allocated."""

import torch

from octavo.common import probe
from octavo.common.words import size
from octavo.config.facts import ModelFacts
from octavo.errors import OutOfMemory


def weight_bytes(facts: ModelFacts, dtype: torch.dtype, positions: int) -> int:
    """Bytes of a model's matrices and of its rope tables of ``positions`` rows; vectors are less than a thousandth."""
    q, kv = facts.q_heads * facts.head_dim, facts.kv_heads * facts.head_dim
    layer = facts.hidden * (2 * q + 2 * kv) + 3 * facts.hidden * facts.ffn
    numbers = facts.layers * layer + facts.vocab * facts.hidden * (1 if facts.tied else 2)
    ropes = 1 if facts.local_rope is None else 2
    return numbers * dtype.itemsize + ropes * positions * facts.head_dim * 4


def check(facts: ModelFacts, device: torch.device, dtype: torch.dtype, positions: int) -> None:
    """Raise ``OutOfMemory`` when the model takes more than the device has free."""
    need, free = weight_bytes(facts, dtype, positions), available(device)
    if need > free:
        narrower = "" if dtype.itemsize == 2 else "; --dtype bfloat16 would need half"
        raise OutOfMemory(
            f"the weights need {size(need)} as {str(dtype)[6:]}, and {device} has {size(free)} free{narrower}"
        )


def available(device: torch.device) -> int:
    """Bytes that this process may still take on a device."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else probe.memory().free
