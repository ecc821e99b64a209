"""What is typed and how it is shown: messages of one line or many, a history that lasts, dim text, a moving picture."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

#: Lines of history that are kept.
LINES = 1000
_QUOTES = '"""'


def colours() -> bool:
    """Whether standard output is a terminal that wants escapes."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def dim(text: str) -> str:
    return f"\x1b[2m{text}\x1b[0m" if colours() else text


def bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m" if colours() else text


@contextlib.contextmanager
def waiting(text: str) -> Iterator[None]:
    """``text`` on standard error until the body is done, then wiped away; nothing where that is no terminal."""
    if not sys.stderr.isatty():
        yield
        return
    print(text, end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print("\n" if os.environ.get("TERM") == "dumb" else "\r\x1b[K", end="", file=sys.stderr, flush=True)


class History:
    """Lines that were typed, kept for the next time in a file that only this user reads; nothing where none can be."""

    def __init__(self, keep: bool = True):
        state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
        self._path = Path(state).expanduser() / "octavo" / "chat_history" if keep else None

    def __enter__(self) -> "History":
        self._readline = None
        if sys.stdin.isatty():
            with contextlib.suppress(ImportError):
                import readline

                self._readline = readline
                if self._path is not None:
                    with contextlib.suppress(OSError):
                        readline.read_history_file(self._path)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._readline is None or self._path is None:
            return
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o600))
            self._readline.set_history_length(LINES)
            self._readline.write_history_file(self._path)


def read_messages() -> Iterator[str]:
    """What is typed, message by message, until the end of input. A line that ends in a backslash goes on in the next;
    three quotes begin a text that ends with the next three. Ctrl-C throws away what is being typed."""
    while True:
        try:
            text = _message()
        except EOFError:
            if sys.stdin.isatty():
                print()
            return
        except KeyboardInterrupt:
            print("\n(Ctrl-D or /exit ends)")
            continue
        if text.strip():
            yield text.strip()


def _message() -> str:
    line = _line("> ")
    if line.lstrip().startswith(_QUOTES):
        text = line.lstrip()[len(_QUOTES) :]
        while not text.rstrip().endswith(_QUOTES):
            try:
                text += "\n" + _line("... ")
            except EOFError:
                return text
        return text.rstrip().removesuffix(_QUOTES)
    while line.endswith("\\"):
        try:
            line = line[:-1] + "\n" + _line("... ")
        except EOFError:
            return line[:-1]
    return line


def _line(prompt: str) -> str:
    return input(prompt if sys.stdin.isatty() else "")
