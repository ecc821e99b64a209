"""A conversation as a file, and sampling values as words: what `octavo chat` keeps and sets."""

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from octavo.common.words import nearest
from octavo.errors import ConfigError

#: Largest file that is read.
LONGEST = 64 << 20
_ROLES = ("user", "assistant")

#: Sampling value -> (what makes it from a word, what it is called).
OPTIONS: dict[str, tuple[Callable[[str], Any], str]] = {
    **dict.fromkeys(("temperature", "top_p", "min_p"), (float, "a number")),
    **dict.fromkeys(("presence_penalty", "frequency_penalty", "repetition_penalty"), (float, "a number")),
    **dict.fromkeys(("max_tokens", "min_tokens", "top_k", "seed"), (int, "a whole number")),
    "stop": (lambda text: [text], "a text"),
}


def set_option(options: dict[str, Any], name: str, value: str) -> None:
    """Set one, or unset it where ``value`` is empty. Raises ``ConfigError`` for an unknown name or no such value."""
    name = name.replace("-", "_")
    if name not in OPTIONS:
        raise ConfigError(f"unknown value {name[:40]!r}{nearest(name, OPTIONS)}; possible: {', '.join(OPTIONS)}")
    if not value:
        options.pop(name, None)
        return
    make, words = OPTIONS[name]
    try:
        options[name] = make(value)
    except ValueError:
        raise ConfigError(f"{name} takes {words}, not {value[:40]!r}") from None


def save(name: str, system: str | None, messages: list[dict[str, str]], options: dict[str, Any]) -> None:
    """Write a conversation, for its user only to read. Raises ``ConfigError`` where a file of another kind is there."""
    path = _path(name)
    if path.exists():
        with contextlib.suppress(ConfigError):
            load(name)
            path.unlink()
        if path.exists():
            raise ConfigError(f"{path} exists and is no saved conversation; choose another name")
    text = json.dumps({"system": system, "messages": messages, "options": options}, ensure_ascii=False, indent=1)
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None


def load(name: str) -> tuple[str | None, list[dict[str, str]], dict[str, Any]]:
    """(system prompt, messages, sampling values) of a file. Raises ``ConfigError`` for one that is not well-formed."""
    path = _path(name)
    try:
        if path.stat().st_size > LONGEST:
            raise ConfigError(f"{path} is over {LONGEST} bytes")
        found = json.loads(path.read_text(encoding="utf-8"))
        system, options = found["system"], found["options"]
        messages = [{"role": one["role"], "content": one["content"]} for one in found["messages"]]
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ConfigError(f"{path} is no saved conversation") from None
    good = all(one["role"] in _ROLES and isinstance(one["content"], str) for one in messages)
    if not (
        good
        and (system is None or isinstance(system, str))
        and isinstance(options, dict)
        and set(options) <= set(OPTIONS)
    ):
        raise ConfigError(f"{path} is no saved conversation")
    return system, messages, options


def _path(name: str) -> Path:
    if not name:
        raise ConfigError("a file's name is needed, as in /save talk.json")
    return Path(name).expanduser()
