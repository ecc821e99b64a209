"""Kernels that are compiled ahead, by processes without torch and without a GPU, are those that a launch looks for."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys

import pytest

from octavo.common import probe
from octavo.device.kernels import warm
from octavo.device.kernels.variants import Variant
from octavo.testing.served import PATIENCE

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or probe.compiler() is None, reason="needs Triton and a C compiler"
)

COMMON = """
import json
from octavo.device.kernels import variants
from octavo.device.kernels.warm import Warming, _pretend
options = (("EPS", 1e-6), ("GAIN", True), ("H", 96), ("HP", 128), ("PDL", 1), ("launch_pdl", True), ("num_warps", 4))
half, wide = variants.Pointer("bf16", True), variants.Pointer("fp32", True)
asked = [(half, half, half, n) for n in (96, 97, 1)] + [(variants.Pointer("bf16", False), wide, half, 96)]
listed = [variants.Variant("octavo.device.kernels.triton.norm", "rms", args, options) for args in asked]
"""

FILL = """
def fill():
    warming = Warming((9, 0), 2)
    warming.add(listed[:2])
    warming.wait()
    warming.add(listed)
    warming.seal()
    warming.wait()
    outcome = warming.outcome
    warming.close()
    return [outcome.compiled, outcome.found, outcome.failed]
"""

#: As a launch does it, with real tensors.
LOOK = """
def look():
    import torch
    from triton import knobs
    from octavo.device.kernels.triton import norm
    _pretend((9, 0))
    hits = []
    knobs.compilation.listener = lambda *, cache_hit, **_: hits.append(cache_hit)
    x = torch.empty(1024, dtype=torch.bfloat16)
    for args in ((x, x, x, 96), (x, x, x, 97), (x, x, x, 1), (x[2:], x.float(), x, 96)):
        norm.rms.warmup(*args, grid=(1,), **dict(options))
    return hits
"""


def python(code, cache):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(cache)
    done = subprocess.run(
        [sys.executable, "-c", COMMON + FILL + LOOK + f"print(json.dumps({code}))"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_is_compiled_ahead_is_found_by_a_launch_wherever_the_cache_lies(tmp_path):
    assert python("fill()", tmp_path / "made") == [4, 0, []]
    assert len(list((tmp_path / "made").glob("*/*.so"))) == 3  # Triton's loader, and arguments of two kinds
    shutil.move(tmp_path / "made", tmp_path / "moved")
    assert python("[look(), fill()]", tmp_path / "moved") == [[True] * 4, [0, 4, []]]


def variant(name, *args):
    return Variant("octavo.device.kernels.triton.norm", name, args, ())


def test_what_cannot_be_compiled_is_told_and_ends():
    warming = warm.Warming((9, 0), 1)
    try:
        warming.add([variant("nobody"), variant("nobody"), variant("no_one")])
        warming.wait()
        assert sorted(text.split(":")[0] for text in warming.outcome.failed) == ["no_one", "nobody"]
        assert warming.done
        assert "2 failed" in warming.told()
    finally:
        warming.close()


@pytest.mark.parametrize("before", [False, True])
def test_processes_that_end_are_not_waited_for(before):
    """Whether they have ended before more is added, or may end while it is."""
    warming = warm.Warming((9, 0), 2)
    for child in warming._children:
        child.kill()
        assert not before or child.wait(PATIENCE)
    warming.add([variant("rms")])
    warming.seal()
    warming.wait()
    assert warming.outcome.failed
    warming.close()
    warming.close()
    assert not warming._folder.exists()
