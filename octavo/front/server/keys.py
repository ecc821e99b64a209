"""API keys: where they come from, and whether a request has one. A leaf, for HTTP and gRPC."""

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from pathlib import Path

from octavo.errors import ConfigError

#: Keys of one server: each request is compared with all of them, on the loop.
MAX_KEYS = 1000
MAX_KEY = 4096
#: Whose request is being worked on: what ``Keys.owner`` said of it, None where no key was asked for.
caller: ContextVar[bytes | None] = ContextVar("caller", default=None)


class Keys:
    """Known keys, held as their SHA-256. Every comparison takes its full time, whichever key fits, or none."""

    def __init__(self, keys: Iterable[str]):
        self._known = [_digest(key.encode()) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._known)

    def knows(self, *tokens: bytes) -> bool:
        """Whether one of ``tokens`` is a key."""
        return self.owner(*tokens) is not None

    def owner(self, *tokens: bytes) -> bytes | None:
        """What stands for the key that one of ``tokens`` is: its digest. None where none of them is a key."""
        found = None
        for digest in map(_digest, tokens):
            for known in self._known:
                found = digest if hmac.compare_digest(digest, known) else found
        return found


def bearer(header: bytes) -> bytes:
    """The token of an Authorization header; empty where it has none."""
    scheme, _, token = header.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""


def read_keys(given: Sequence[str] | None, file: str | None, otherwise: str | None) -> tuple[str, ...]:
    """Keys of the command line and of a file; without either ``otherwise``, from the environment.

    A file holds a key a line; empty lines and those that begin with # are none. Raises ``ConfigError``, which shows no
    key.
    """
    keys = [(key, "--api-key") for key in given or ()]
    if file is not None:
        keys += [(key, f"--api-key-file {file}") for key in _lines(file)]
    if given is None and file is None and otherwise is not None:
        keys.append((otherwise, "the key in the environment"))
    if len(keys) > MAX_KEYS:
        raise ConfigError(f"at most {MAX_KEYS} API keys are taken, got {len(keys)}")
    for key, source in keys:
        if not key:
            raise ConfigError(f"{source}: a key must not be empty")
        if len(key) > MAX_KEY:
            raise ConfigError(f"{source}: a key may have at most {MAX_KEY} characters")
        if key != key.strip() or not key.isascii() or not key.isprintable():
            raise ConfigError(
                f"{source}: a key must be printable ASCII without spaces around it, since it travels in a header"
            )
    return tuple(dict.fromkeys(key for key, _ in keys))


def _lines(file: str) -> list[str]:
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"--api-key-file: {file} cannot be read: {why}") from None
    found = [line.strip() for line in text.splitlines()]
    found = [line for line in found if line and not line.startswith("#")]
    if not found:
        raise ConfigError(f"--api-key-file: {file} holds no key")
    return found


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
