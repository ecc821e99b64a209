"""Kernels compiled for compute capability 9.0 where no GPU is, and what the compiler made of them.

It compiles in processes of its own (``python -m tests.ptx.compiled``: variants in, facts out), since in this one
Triton's interpreter may be on.
"""

import importlib
import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.device.kernels.variants import NAMES, Pointer, Variant

#: Bytes of shared memory that a program may have there.
SHARED = 227 << 10
CAPABILITY = 90
#: Seconds for one variant, on a machine that others use too.
PATIENCE = 120
DTYPES = {name: dtype for dtype, name in NAMES.items()}


@dataclass(frozen=True)
class Made:
    """What became of a variant. ``shared``: bytes. ``registers``: of a thread; ``stack``: bytes of it that a thread
    keeps in memory, which is where registers go that do not fit. ``error``: why there is none."""

    variant: Variant
    shared: int = 0
    registers: int = 0
    stack: int = 0
    ptx: str = ""
    error: str | None = None

    def __str__(self) -> str:
        return f"{self.variant.name} {dict(self.variant.options)}"


def compiled(variants: Sequence[Variant]) -> list[Made]:
    """Compile them all, in one process a core."""
    if not variants:
        return []
    count = max(1, min(len(os.sched_getaffinity(0)), len(variants)))
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    parts = [variants[start::count] for start in range(count)]
    children = []
    with tempfile.TemporaryDirectory() as folder:
        for number, part in enumerate(parts):
            given, told = Path(folder) / f"{number}.in", Path(folder) / f"{number}.out"
            given.write_bytes(pickle.dumps(part))
            command = [sys.executable, "-m", "tests.ptx.compiled", str(given), str(told)]
            children.append((subprocess.Popen(command, env=environment, cwd=Path(__file__).parents[2]), told, part))
        found: dict[Variant, Made] = {}
        for child, told, part in children:
            try:
                assert child.wait(PATIENCE * len(part)) == 0, f"the compiling process ended with {child.returncode}"
            finally:
                child.kill()
            facts = pickle.loads(told.read_bytes())
            found |= {one: Made(one, **fact) for one, fact in zip(part, facts, strict=True)}
    return [found[one] for one in variants]


class Stand:
    """A tensor of which Triton asks dtype and address."""

    def __init__(self, pointer: Pointer):
        self.dtype = DTYPES[pointer.dtype]
        self._address = 0 if pointer.aligned else 4

    def data_ptr(self) -> int:
        return self._address


class Driver:
    """What Triton asks of a driver to compile: the target."""

    def __init__(self, capability: int):
        from triton.backends.compiler import GPUTarget

        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def build(one: Variant, capability: int) -> Any:
    """Compile a variant for a compute capability (90: 9.0), or find it in Triton's cache: Triton's CompiledKernel, not
    loaded. No GPU is asked: this process must not launch kernels afterwards. Raises what Triton's compiler raises."""
    from triton.runtime import driver

    driver.set_active(Driver(capability))
    kernel = getattr(importlib.import_module(one.module), one.name)
    args = [Stand(arg) if isinstance(arg, Pointer) else arg for arg in one.args]
    return kernel.run(*args, grid=(1,), warmup=True, **dict(one.options))


def _compile(one: Variant) -> dict[str, Any]:
    """What ``Made`` says of it."""
    try:
        kernel = build(one, CAPABILITY)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.kernel)
        file.flush()
        told = subprocess.run(
            [knobs.nvidia.cuobjdump.path, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    usage = re.search(r"REG:(\d+) STACK:(\d+)", told)
    assert usage is not None, told
    return {
        "shared": kernel.metadata.shared,
        "registers": int(usage[1]),
        "stack": int(usage[2]),
        "ptx": kernel.asm["ptx"],
    }


if __name__ == "__main__":
    given, told = map(Path, sys.argv[1:])
    told.write_bytes(pickle.dumps([_compile(one) for one in pickle.loads(given.read_bytes())]))
