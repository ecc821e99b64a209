"""Where tests of Triton kernels run: on a GPU if there is one, else in Triton's interpreter on CPU tensors. Import it
before any kernel."""

import importlib.util
import os

import numpy as np
import pytest
import torch

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
_ABLE = importlib.util.find_spec("triton") is not None and (
    HERE.type == "cuda"
    or tuple(map(int, np.__version__.split(".")[:2])) < (2, 4)  # Triton 3.6 takes arrays of one number as numbers
)
if _ABLE and HERE.type == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"

interpreted = pytest.mark.skipif(not _ABLE, reason="needs Triton, and a GPU or numpy before 2.4")
