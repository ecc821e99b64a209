"""Runs tests of Triton kernels in Triton's interpreter, on CPU tensors. Import it before any kernel."""

import importlib.util
import os

import numpy as np
import pytest
import torch

_ABLE = (
    importlib.util.find_spec("triton") is not None
    and not torch.cuda.is_available()  # there the tests under tests/gpu say it
    and tuple(map(int, np.__version__.split(".")[:2])) < (2, 4)  # Triton 3.6 takes arrays of one number as numbers
)
if _ABLE:
    os.environ["TRITON_INTERPRET"] = "1"

interpreted = pytest.mark.skipif(not _ABLE, reason="needs Triton, no GPU, and numpy before 2.4")
