"""Addresses for processes of one machine."""

import os
import shutil
import tempfile

#: A Unix socket's path has room for 107 bytes.
_LONGEST = 107


class IpcDirectory:
    """A directory that only this user can enter, with the sockets of one engine in it."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="octavo-")
        if len(os.fsencode(self.path)) > _LONGEST - 20:
            os.rmdir(self.path)
            self.path = tempfile.mkdtemp(prefix="octavo-", dir="/tmp")

    def address(self, name: str) -> str:
        """The ZeroMQ address of a socket in it."""
        return f"ipc://{self.path}/{name}"

    def close(self) -> None:
        """Remove it. May be called twice."""
        shutil.rmtree(self.path, ignore_errors=True)
