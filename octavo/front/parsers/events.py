"""What a parser tells of an answer."""

import enum
from typing import NamedTuple


class Kind(enum.IntEnum):
    """CALL tells a call's name and id, once; ARGUMENTS a piece of its JSON; CALL_END that nothing more of it comes."""

    REASONING = 0
    CONTENT = 1
    CALL = 2
    ARGUMENTS = 3
    CALL_END = 4


class Event(NamedTuple):
    """``text``: the piece, or a call's name. ``index``: the call's number, from 0 without holes; -1 for plain text.

    ``id``: the call's own id, with ``Kind.CALL``.
    """

    kind: Kind
    text: str = ""
    index: int = -1  # type: ignore[assignment]
    id: str = ""


def merged(events: list[Event]) -> list[Event]:
    """The same news with neighbours of one kind and call put together; empty pieces are left out."""
    found: list[Event] = []
    parts: list[str] = []
    last: Event | None = None
    for event in events:
        if event.kind in (Kind.CALL, Kind.CALL_END):
            _close(found, last, parts)
            last = None
            found.append(event)
        elif not event.text:
            continue
        elif last is not None and last.kind == event.kind and last.index == event.index:
            parts.append(event.text)
        else:
            _close(found, last, parts)
            last, parts = event, [event.text]
    _close(found, last, parts)
    return found


def _close(found: list[Event], last: Event | None, parts: list[str]) -> None:
    if last is not None:
        found.append(last if len(parts) == 1 else last._replace(text="".join(parts)))
