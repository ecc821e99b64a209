"""GGUF's blocks as numbers, in torch: the ``gguf`` package's numpy takes 16 short rows at a time, ten times slower.

Layouts are those of ggml-quants.c. A block of the simple types has 32 numbers, one of the K types 256. d and m are
float16: a number is d * q + m, or for K types d * scale * q - m * minimum, with a small scale for each 16 or 32.
"""

from collections.abc import Callable

import torch
from torch import Tensor

_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


#: Numbers expanded at a time: under the size from which torch shares an elementwise operation among threads, whose
#: barriers cost more than the work (far more on a busy machine), and small enough for the second-level cache.
_PIECE = 32000


def dequantise(raw: Tensor, kind: str, out: Tensor) -> None:
    """uint8 bytes of whole blocks -> their numbers in ``out``, flat and contiguous, of any float dtype."""
    if kind in _PLAIN:
        out.copy_(raw.view(_PLAIN[kind]))
        return
    size, expand = _BLOCKS[kind]
    blocks = raw.view(-1, size)
    numbers = out.view(blocks.shape[0], -1)
    step = _PIECE // numbers.shape[1]
    for at in range(0, blocks.shape[0], step):
        numbers[at : at + step] = expand(blocks[at : at + step]).view(-1, numbers.shape[1])


def _half(blocks: Tensor, at: int) -> Tensor:
    """float16 at byte ``at`` of each block -> float32 [n, 1]."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """uint8 [n, b] -> float32 [n, 2 b]: the low halves of all bytes, then the high ones."""
    out = torch.empty(packed.shape[0], 2, packed.shape[1])
    out[:, 0] = packed & 15
    out[:, 1] = packed >> 4
    return out.flatten(1)


def _fields(packed: Tensor, run: int, bits: int, mask: int) -> Tensor:
    """uint8 [n, b] -> uint8 [n, b / run * 8 / bits, run]: of each run the lowest fields, then the next."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)[None, None, :, None]
    return ((packed.reshape(packed.shape[0], -1, 1, run) >> shifts) & mask).reshape(packed.shape[0], -1, run)


def _fifth(packed: Tensor) -> Tensor:
    """uint8 [n, 4] -> float32 [n, 32]: bit i of the 32 is the fifth bit of number i."""
    shifts = torch.arange(8, dtype=torch.uint8)
    return ((packed[:, :, None] >> shifts) & 1).flatten(1).float().mul_(16.0)


def _q4_0(b: Tensor) -> Tensor:
    return _nibbles(b[:, 2:]).sub_(8.0).mul_(_half(b, 0))


def _q4_1(b: Tensor) -> Tensor:
    return _nibbles(b[:, 4:]).mul_(_half(b, 0)).add_(_half(b, 2))


def _q5_0(b: Tensor) -> Tensor:
    return _nibbles(b[:, 6:]).add_(_fifth(b[:, 2:6])).sub_(16.0).mul_(_half(b, 0))


def _q5_1(b: Tensor) -> Tensor:
    return _nibbles(b[:, 8:]).add_(_fifth(b[:, 4:8])).mul_(_half(b, 0)).add_(_half(b, 2))


def _q8_0(b: Tensor) -> Tensor:
    return b[:, 2:].view(torch.int8).float().mul_(_half(b, 0))


def _q2_k(b: Tensor) -> Tensor:
    scales, q = b[:, :16], _fields(b[:, 16:80], 32, 2, 3).reshape(-1, 16, 16).float()
    d, m = _half(b, 80) * (scales & 15), _half(b, 82) * (scales >> 4)
    return q.mul_(d[:, :, None]).sub_(m[:, :, None])


def _q3_k(b: Tensor) -> Tensor:
    high = _fields(b[:, :32], 32, 1, 1).reshape(-1, 16, 16)
    low = _fields(b[:, 32:96], 32, 2, 3).reshape(-1, 16, 16)
    # 6-bit scales: low four bits in bytes 0..7, high two in bytes 8..11.
    scale = _fields(b[:, 96:104], 8, 4, 15).flatten(1) | (_fields(b[:, 104:108], 4, 2, 3).flatten(1) << 4)
    d = _half(b, 108) * (scale.float() - 32.0)
    q = low.float().sub_((1 - high.float()).mul_(4.0))
    return q.mul_(d[:, :, None])


def _scales_k(packed: Tensor) -> tuple[Tensor, Tensor]:
    """uint8 [n, 12] -> eight 6-bit scales and eight 6-bit minima, [n, 8] each."""
    d, m, both = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat((d & 63, (both & 15) | ((d >> 2) & 48)), 1)
    return scales, torch.cat((m & 63, (both >> 4) | ((m >> 2) & 48)), 1)


def _q4_k(b: Tensor) -> Tensor:
    scales, minima = _scales_k(b[:, 4:16])
    q = _fields(b[:, 16:], 32, 4, 15).float()
    return q.mul_((_half(b, 0) * scales)[:, :, None]).sub_((_half(b, 2) * minima)[:, :, None])


def _q5_k(b: Tensor) -> Tensor:
    scales, minima = _scales_k(b[:, 4:16])
    q = (_fields(b[:, 48:], 32, 4, 15) | (_fields(b[:, 16:48], 32, 1, 1) << 4)).float()
    return q.mul_((_half(b, 0) * scales)[:, :, None]).sub_((_half(b, 2) * minima)[:, :, None])


def _q6_k(b: Tensor) -> Tensor:
    low = _fields(b[:, :128], 64, 4, 15).reshape(-1, 8, 32)
    q = (low | (_fields(b[:, 128:192], 32, 2, 3) << 4)).float().sub_(32.0).reshape(-1, 16, 16)
    return q.mul_((_half(b, 208) * b[:, 192:208].view(torch.int8))[:, :, None])


#: Type -> (bytes a block, its expansion uint8 [n, bytes] -> float32 of n blocks).
_BLOCKS: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q5_0": (22, _q5_0),
    "Q5_1": (24, _q5_1),
    "Q8_0": (34, _q8_0),
    "Q2_K": (84, _q2_k),
    "Q3_K": (110, _q3_k),
    "Q4_K": (144, _q4_k),
    "Q5_K": (176, _q5_k),
    "Q6_K": (210, _q6_k),
}
#: Types that can be read.
KINDS = (*_PLAIN, *_BLOCKS)
