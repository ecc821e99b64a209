"""RMS norm of every head of q and of k."""

from torch import Tensor
from torch.nn.functional import rms_norm


def qk_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [T, heads, D] / rms(x over D) * weight [D]; in float32 inside, x's type outside."""
    return qk_norm_torch(x, weight, eps)


def qk_norm_torch(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return rms_norm(x.float(), (x.shape[-1],), weight.float(), eps).to(x.dtype)
