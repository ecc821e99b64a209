"""Tables of the rotary embedding: cos and sin of every position, for each kind of scaling.

A row of a table depends on its position alone, so a key's rotation never depends on how its prompt was cut, batched or
cached. For ``dynamic`` (NTK) that is a choice: Transformers takes the base from the longest sequence that a forward
pass sees, so its keys depend on the chunking; here row p is what it computes when it decodes token p on its own.
"""

import math

import torch
from torch import Tensor

from octavo.config.facts import RopeFacts

#: Positions whose float64 numbers are held at once.
PIECE = 4096


def table(rope: RopeFacts, dim: int, positions: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(cos, sin), float32 [positions, dim / 2] each, scaled by the kind's attention factor."""
    at = torch.arange(positions, dtype=torch.float32, device=device)
    if rope.kind == "dynamic":
        angles = torch.empty(positions, dim // 2, dtype=torch.float32, device=device)
        for few, out in zip(at.split(PIECE), angles.split(PIECE), strict=True):
            out.copy_(_dynamic(rope, dim, few))
    else:
        angles = torch.outer(at, _FREQUENCIES[rope.kind](rope, dim).to(device))
    cos, sin = angles.cos(), angles.sin_()
    if (factor := _attention_factor(rope)) != 1.0:
        cos *= factor
        sin *= factor
    return cos, sin


def _plain(rope: RopeFacts, dim: int) -> Tensor:
    """https://arxiv.org/abs/2104.09864: theta^(-2i / dim)."""
    return 1.0 / (rope.theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))


def _linear(rope: RopeFacts, dim: int) -> Tensor:
    """Position interpolation, https://arxiv.org/abs/2306.15595."""
    return _plain(rope, dim) / rope.scaling["factor"]


def _factors(rope: RopeFacts, dim: int) -> Tensor:
    """GGUF's rope_freqs: a divisor for each frequency."""
    return _plain(rope, dim) / torch.tensor(rope.scaling["factors"], dtype=torch.float32)


def _llama3(rope: RopeFacts, dim: int) -> Tensor:
    """Llama 3.1: long waves are stretched, short ones are not, those between are blended."""
    scaling = rope.scaling
    factor, low, high = scaling["factor"], scaling["low_freq_factor"], scaling["high_freq_factor"]
    original = scaling["original_max_position_embeddings"]
    plain = _plain(rope, dim)
    waves = 2 * math.pi / plain
    blend = (original / waves - low) / (high - low)
    blended = (1 - blend) * plain / factor + blend * plain
    out = torch.where(waves > original / low, plain / factor, plain)
    between = (waves <= original / low) & (waves >= original / high)
    return torch.where(between, blended, out)


def _yarn(rope: RopeFacts, dim: int) -> Tensor:
    """YaRN, https://arxiv.org/abs/2309.00071: a ramp over dimensions between stretched and plain frequencies."""
    scaling = rope.scaling
    original = scaling["original_max_position_embeddings"]

    def turning(rotations: float) -> float:
        """The dimension whose wave turns that often over the trained length."""
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = turning(scaling.get("beta_fast", 32)), turning(scaling.get("beta_slow", 1))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / ((high - low) or 0.001)).clamp(0, 1)
    plain = _plain(rope, dim)
    return plain / scaling["factor"] * ramp + plain * (1 - ramp)


def _dynamic(rope: RopeFacts, dim: int, at: Tensor) -> Tensor:
    """Dynamic NTK: the base grows with the length reached, here the position itself plus one."""
    factor, original = rope.scaling["factor"], rope.scaling["original_max_position_embeddings"]
    length = (at.double() + 1).clamp(min=original)
    base = rope.theta * (factor * length / original - (factor - 1)) ** (dim / (dim - 2))
    exponents = torch.arange(0, dim, 2, dtype=torch.float64, device=at.device) / dim
    frequencies = (base[:, None] ** -exponents[None, :]).float()
    return at[:, None] * frequencies


def _attention_factor(rope: RopeFacts) -> float:
    """YaRN also sharpens attention, by scaling queries and keys alike."""
    if rope.kind != "yarn":
        return 1.0
    scaling = rope.scaling
    if (given := scaling.get("attention_factor")) is not None:
        return given

    def magnitude(weight: float) -> float:
        return 1.0 if scaling["factor"] <= 1 else 0.1 * weight * math.log(scaling["factor"]) + 1.0

    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return magnitude(scaling["mscale"]) / magnitude(scaling["mscale_all_dim"])
    return magnitude(1.0)


_FREQUENCIES = {"default": _plain, "linear": _linear, "llama3": _llama3, "yarn": _yarn, "factors": _factors}
