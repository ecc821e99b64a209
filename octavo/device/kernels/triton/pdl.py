"""What runs ahead of a kernel's inputs: the device-side calls of programmatic dependent launch (``kernels.launch``),
and asking for memory early."""

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


@triton.jit
def fetch(pointers):
    """Ask for the lines that these addresses (int64) lie in, without waiting; results are nothing."""
    if not INTERPRETED:
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointers], dtype=tl.int32, is_pure=False, pack=1
        )
