"""The command line as others on this machine see it."""

import contextlib
import ctypes
import re
from collections.abc import Iterable


def hide(secrets: Iterable[str]) -> None:
    """Overwrite ``secrets`` in the command line of this process, which every user may read with ``ps``. Linux; where
    it cannot be done, nothing happens."""
    words = [secret.encode() for secret in secrets if secret]
    if not words:
        return
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/self/stat", "rb") as file:
            numbers = file.read().rpartition(b")")[2].split()
        start, end = int(numbers[45]), int(numbers[46])  # arg_start and arg_end of proc(5)
        if not 0 < start < end:
            return
        text = ctypes.string_at(start, end - start)
        for found in re.finditer(rb"(?<=[\0=])(?:%s)(?=\0)" % b"|".join(map(re.escape, words)), text):
            ctypes.memset(start + found.start(), ord("*"), found.end() - found.start())
