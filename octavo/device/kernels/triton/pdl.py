"""The device-side calls of programmatic dependent launch; see ``kernels.launch``."""

import os

import triton
import triton.language as tl
from triton.language.extra import cuda

#: Triton's interpreter runs the kernels, which knows no assembler.
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def release(PDL: tl.constexpr):
    """First line of a kernel."""
    if PDL == 2:
        cuda.gdc_launch_dependents()


@triton.jit
def await_inputs(PDL: tl.constexpr):
    """Behind this line is what the kernels before wrote. Nothing may be written before it."""
    if PDL:
        cuda.gdc_wait()
    if PDL == 1:
        cuda.gdc_launch_dependents()


@triton.jit
def yield_late(PDL: tl.constexpr):
    """Behind the loop of a kernel that may be launched LATE."""
    if PDL == 3:
        cuda.gdc_launch_dependents()
