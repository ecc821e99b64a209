"""GGUF's blocks as numbers. The types that a small model meets are torch code, which is several times faster than the
``gguf`` package's; the others are that package's, in threads."""

import torch
from torch import Tensor

#: Types that can be read.
KINDS = (
    *("F32", "F16", "BF16"),
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
)
_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def dequantise(raw: Tensor, kind: str) -> Tensor:
    """uint8 bytes of whole blocks -> the numbers, flat; float32 but for plain types."""
    if kind in _PLAIN:
        return raw.view(_PLAIN[kind])
    import gguf

    number = gguf.GGMLQuantizationType[kind]
    _, size = gguf.GGML_QUANT_SIZES[number]
    return torch.from_numpy(gguf.dequantize(raw.numpy().reshape(-1, size), number).reshape(-1))
