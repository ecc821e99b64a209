"""Addresses for processes of one machine."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

#: A Unix socket's path has room for 107 bytes.
_LONGEST = 107
_PREFIX = "octavo-"
_LOCK = "lock"


class IpcDirectory:
    """A directory that only this user can enter, with the sockets of one engine in it.

    Its owner holds a lock in it. One whose owner was killed is not locked any more, and the next owner removes it.
    """

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix=_PREFIX)
        if len(os.fsencode(self.path)) > _LONGEST - 20:
            os.rmdir(self.path)
            self.path = tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp")
        # The lock gets its name when it is held: others never see one that is free and yet has an owner.
        self._lock = os.open(f"{self.path}/new", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.rename(f"{self.path}/new", f"{self.path}/{_LOCK}")
        _sweep(Path(self.path).parent)

    def address(self, name: str) -> str:
        """The ZeroMQ address of a socket in it."""
        return f"ipc://{self.path}/{name}"

    def close(self) -> None:
        """Remove it. May be called twice."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def _sweep(folder: Path) -> None:
    """Remove the directories in ``folder`` whose owners ended without a chance to."""
    for left in folder.glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError):  # it is another user's, in use, or being removed
            lock = os.open(left, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_uid == os.getuid():
                    shutil.rmtree(left.parent, ignore_errors=True)
            finally:
                os.close(lock)
