"""One logger set-up. Prompt text and keys are never logged, and what a line holds cannot forge another one."""

import json
import logging
import os
import re
import sys
import time
from contextvars import ContextVar
from pathlib import Path

from octavo.errors import ConfigError

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
FORMATS = ("text", "json")
#: The HTTP request that is being worked on, for the lines that are logged meanwhile.
request_id: ContextVar[str] = ContextVar("request_id", default="")
_TEXT = "%(asctime)s %(levelname).1s %(name)s%(process_tag)s%(request_tag)s: %(message)s"
#: Control characters, and what some viewers take for the end of a line.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")
_tag = ""


class _Tag(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        name = request_id.get()
        record.process_tag = f"[{_tag}]" if _tag else ""
        record.request_id = name
        record.request_tag = f" {name}" if name else ""
        return True


class _Text(logging.Formatter):
    """Lines for people. A record of several lines has all but its first indented: at the margin only octavo speaks."""

    def __init__(self) -> None:
        super().__init__(_TEXT, "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        return plain(super().format(record)).replace("\n", "\n    ")

    def formatException(self, ei) -> str:
        return relative(super().formatException(ei))


class _JSON(logging.Formatter):
    """An object a line: time (UTC), level, logger, process, message; request_id and exception where there are any."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": _tag or "api",
            "message": plain(record.getMessage()),
        }
        if name := getattr(record, "request_id", ""):
            line["request_id"] = name
        if record.exc_info:
            line["exception"] = plain(self.formatException(record.exc_info))
        return json.dumps(line)

    def formatException(self, ei) -> str:
        return relative(super().formatException(ei))


def without_query(record: logging.LogRecord) -> bool:
    """A filter of uvicorn's access log: what stands behind a ? may be a secret, and no route reads it."""
    if isinstance(record.args, tuple):
        record.args = tuple(arg.partition("?")[0] if isinstance(arg, str) else arg for arg in record.args)
    return True


def plain(text: str) -> str:
    """``text`` without memory addresses, and with control characters (but tab and newline) written out."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", _ADDRESS.sub("0x...", text))


def relative(trace: str) -> str:
    """A traceback that names files from the package on, and not where on this machine they are."""
    for root in _ROOTS:
        trace = trace.replace(f'File "{root}/', 'File "')
    return trace


#: Longest first: one may lie in another.
_ROOTS = sorted(
    {str(Path(__file__).parents[2]), *(entry.rstrip("/") for entry in sys.path if entry.startswith("/")), sys.prefix},
    key=len,
    reverse=True,
)


def level() -> str:
    """The least important level that is shown now, set up or not; a child process is told it."""
    return os.environ.get("OCTAVO_LOG_LEVEL") or logging.getLevelName(logging.getLogger("octavo").getEffectiveLevel())


def setup(level: str | None = None, tag: str = "") -> None:
    """Configure the ``octavo`` logger once a process. ``tag`` names the process where there are several.

    Raises ``ConfigError`` for a level or a format that is none.
    """
    global _tag
    _tag = tag
    root = logging.getLogger("octavo")
    asked = level or os.environ.get("OCTAVO_LOG_LEVEL") or "INFO"
    if asked.upper() not in LEVELS:
        known = ", ".join(name.lower() for name in LEVELS)
        raise ConfigError(f"OCTAVO_LOG_LEVEL is {asked[:40]!r}; possible: {known}")
    form = os.environ.get("OCTAVO_LOG_FORMAT") or "text"
    if form not in FORMATS:
        raise ConfigError(f"OCTAVO_LOG_FORMAT is {form[:40]!r}; possible: {', '.join(FORMATS)}")
    root.setLevel(asked.upper())
    if not root.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_JSON() if form == "json" else _Text())
        handler.addFilter(_Tag())
        root.addHandler(handler)
        root.propagate = False


def logger(name: str) -> logging.Logger:
    """The logger of a module; ``name`` is its ``__name__``."""
    return logging.getLogger(name)
