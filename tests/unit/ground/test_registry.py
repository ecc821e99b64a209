"""Registries name what they know; importing octavo costs nothing."""

import subprocess
import sys

import pytest

from octavo.common.registry import Registry
from octavo.common.words import nearest, size
from octavo.errors import ConfigError

SHAPES: Registry[type] = Registry("shape", "collections", {"counter": "abc:Sized", "ordered": "abc:Iterable"})


def test_an_entry_is_loaded_by_name():
    assert SHAPES.load("counter").__name__ == "Sized"
    assert "ordered" in SHAPES
    assert list(SHAPES) == ["counter", "ordered"]


def test_an_unknown_name_lists_the_known():
    with pytest.raises(
        ConfigError, match=r"unknown shape 'countre' \(did you mean 'counter'\?\); known: counter, ordered"
    ):
        SHAPES.load("countre")


def test_words():
    assert nearest("qqq", ["abc"]) == ""
    assert size(1536) == "1.5 KiB"
    assert size(3 * 2**40) == "3072.0 GiB"


def test_importing_octavo_loads_nothing_heavy():
    code = "import octavo, sys; print([m for m in ('torch', 'numpy', 'fastapi', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout.strip() == "[]"


def test_public_names_are_there():
    import octavo

    assert {name: getattr(octavo, name).__name__ for name in ("SamplingParams", "RequestOutput")}
    with pytest.raises(AttributeError, match="LLMs"):
        octavo.LLMs  # noqa: B018
