"""Directories of sockets: none outlives its owner for long, and none is taken from an owner that lives."""

import os
import subprocess
import sys

from octavo.common import net


def test_what_a_killed_owner_left_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(net.tempfile, "tempdir", str(tmp_path))
    code = "import os; from octavo.common.net import IpcDirectory; IpcDirectory(); os.kill(os.getpid(), 9)"
    told = subprocess.run([sys.executable, "-c", code], env=os.environ | {"TMPDIR": str(tmp_path)}, check=False)
    assert told.returncode == -9
    (left,) = tmp_path.iterdir()
    (tmp_path / "octavo-of-somebody").mkdir()  # without a lock nobody knows whose it is
    first, second = net.IpcDirectory(), net.IpcDirectory()
    assert not left.exists()
    assert os.path.isdir(first.path)
    assert os.path.isdir(second.path)
    first.close()
    first.close()
    assert {path.name for path in tmp_path.iterdir()} == {"octavo-of-somebody", os.path.basename(second.path)}
    second.close()
