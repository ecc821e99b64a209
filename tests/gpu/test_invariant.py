"""--deterministic on a GPU: the bits of each request alone, as ``tests/flow/test_deterministic`` has it on a CPU."""

import pytest
import torch
from flow.test_deterministic import WAYS, check

from octavo.device.kernels.joined import FIXED, joined

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here"),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("window", [None, 50])
def test_any_schedule_gives_the_bits_of_each_alone(dtype, window):
    for seed in range(3):
        for way in WAYS:
            check(dtype, window, seed, platform="cuda", **way)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_linear_gives_the_bits_of_each_row_alone(dtype):
    torch.manual_seed(0)
    weight, x = (torch.randn(rows, 1000, device="cuda", dtype=dtype) for rows in (300, 130))
    every = joined(x, weight, how=FIXED)
    for at in (0, 1, 63, 64, 129):
        assert torch.equal(joined(x[at : at + 1].clone(), weight, how=FIXED)[0], every[at])
