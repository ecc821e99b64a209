"""One logger set-up. Prompt text, keys and paths of requests are never logged."""

import logging
import os
import sys

_FORMAT = "%(asctime)s %(levelname).1s %(name)s%(process_tag)s: %(message)s"
_tag = ""


class _Tag(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.process_tag = _tag
        return True


def setup(level: str | None = None, tag: str = "") -> None:
    """Configure the ``octavo`` logger once a process. ``tag`` names the process where there are several."""
    global _tag
    _tag = f"[{tag}]" if tag else ""
    root = logging.getLogger("octavo")
    root.setLevel((level or os.environ.get("OCTAVO_LOG_LEVEL") or "INFO").upper())
    if not root.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter(_FORMAT, "%H:%M:%S"))
        handler.addFilter(_Tag())
        root.addHandler(handler)
        root.propagate = False


def logger(name: str) -> logging.Logger:
    """The logger of a module; ``name`` is its ``__name__``."""
    return logging.getLogger(name)
