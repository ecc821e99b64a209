"""One logger set-up. Prompt text, keys and paths of requests are never logged."""

import logging
import os
import sys

from octavo.errors import ConfigError

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_FORMAT = "%(asctime)s %(levelname).1s %(name)s%(process_tag)s: %(message)s"
_tag = ""


class _Tag(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.process_tag = _tag
        return True


def setup(level: str | None = None, tag: str = "") -> None:
    """Configure the ``octavo`` logger once a process. ``tag`` names the process where there are several.

    Raises ``ConfigError`` for a level that is none.
    """
    global _tag
    _tag = f"[{tag}]" if tag else ""
    root = logging.getLogger("octavo")
    asked = level or os.environ.get("OCTAVO_LOG_LEVEL") or "INFO"
    if asked.upper() not in LEVELS:
        known = ", ".join(name.lower() for name in LEVELS)
        raise ConfigError(f"OCTAVO_LOG_LEVEL is {asked[:40]!r}; possible: {known}")
    root.setLevel(asked.upper())
    if not root.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter(_FORMAT, "%H:%M:%S"))
        handler.addFilter(_Tag())
        root.addHandler(handler)
        root.propagate = False


def logger(name: str) -> logging.Logger:
    """The logger of a module; ``name`` is its ``__name__``."""
    return logging.getLogger(name)
