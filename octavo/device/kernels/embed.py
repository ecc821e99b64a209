"""Rows of an embedding, with what the first norm needs of them."""

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.common.math import next_power_of_two
from octavo.device.kernels.joined import with_squares
from octavo.device.kernels.launch import AFTER, has_kernels, launch


def embed(ids: Tensor, weight: Tensor, scale: float) -> Tensor:
    """ids int [T], weight [V, H], contiguous -> weight[ids] * scale [T, H]; ids lie under V."""
    if has_kernels(weight):
        return embed_triton(ids, weight, scale)
    return embed_torch(ids, weight, scale)


def embed_triton(ids: Tensor, weight: Tensor, scale: float) -> Tensor:
    from octavo.device.kernels.triton import norm as kernels

    width = weight.shape[1]
    out = torch.empty(len(ids), width, dtype=weight.dtype, device=ids.device)
    sums = torch.empty(len(ids), 1, dtype=torch.float32, device=ids.device)
    if len(ids):
        launch(
            kernels.embed,
            (len(ids),),
            ids,
            weight,
            out,
            sums,
            float(scale),
            H=width,
            HP=next_power_of_two(width),
            pdl=AFTER,  # not FIRST: attention reads tables before its wait that were gathered right before this
            num_warps=4,
        )
    return with_squares(out, sums)


def embed_torch(ids: Tensor, weight: Tensor, scale: float) -> Tensor:
    x = F.embedding(ids, weight)
    return x if scale == 1.0 else x.mul_(scale)
