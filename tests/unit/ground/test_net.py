"""Directories of sockets: none outlives its owner for long, and none is taken from an owner that lives."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from octavo.common import net


@pytest.fixture
def short():
    """A folder whose name is short enough for a socket's path, which ``tmp_path`` is not always."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as made:
        yield Path(made)


def test_what_a_killed_owner_left_is_removed(short, monkeypatch):
    monkeypatch.setattr(net.tempfile, "tempdir", str(short))
    code = "import os; from octavo.common.net import IpcDirectory; IpcDirectory(); os.kill(os.getpid(), 9)"
    told = subprocess.run([sys.executable, "-c", code], env=os.environ | {"TMPDIR": str(short)}, check=False)
    assert told.returncode == -9
    (left,) = short.iterdir()
    (short / "octavo-of-somebody").mkdir()  # without a lock nobody knows whose it is
    first, second = net.IpcDirectory(), net.IpcDirectory()
    assert not left.exists()
    assert os.path.isdir(first.path)
    assert os.path.isdir(second.path)
    first.close()
    first.close()
    assert {path.name for path in short.iterdir()} == {"octavo-of-somebody", os.path.basename(second.path)}
    second.close()
