"""Responses that are kept, in memory: bounded by number, bytes and age, each for the key that made it only."""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from octavo.errors import BadRequest, NotFound, Overloaded
from octavo.front.server.openai.responses.answers import Response
from octavo.front.server.openai.responses.convert import AnyItem

#: What an item or a response costs beside its text, about.
_OVERHEAD = 1024
_FRAME_OVERHEAD = 64
#: Frames that a replay sends at once.
_AT_ONCE = 256


def weight(value: Any) -> int:
    """Bytes of memory that a value of JSON takes, models in it included: of small values many times their text."""
    total, left = 0, [value]
    while left:
        one = left.pop()
        total += sys.getsizeof(one)
        if isinstance(one, BaseModel):
            left += (one.__dict__, one.__pydantic_extra__, one.__pydantic_fields_set__)
        elif isinstance(one, dict):
            left += one.keys()
            left += one.values()
        elif isinstance(one, list):
            left += one
    return total


@dataclass(frozen=True, kw_only=True)
class Limits:
    """``count`` 0 keeps nothing. ``age`` in seconds since a response ended."""

    count: int = 1024
    size: int = 256 << 20
    age: float = 24 * 3600.0


class Turn:
    """The items that one request or its answer added to a conversation, after those of ``before``. ``size`` in bytes.

    Responses that go on with the same one share it. ``uses``: how many kept responses and turns after it need it.
    """

    def __init__(self, before: "Turn | None", items: Sequence[AnyItem], size: int):
        self.before = before
        self.items = list(items)
        self.size = size + _OVERHEAD * len(items)
        self.uses = 0

    def conversation(self) -> list[AnyItem]:
        """Everything from the start."""
        turns: list[Turn] = []
        turn: Turn | None = self
        while turn is not None:
            turns.append(turn)
            turn = turn.before
        return [item for turn in reversed(turns) for item in turn.items]


@dataclass(eq=False)
class Entry:
    """A kept response. ``frames``: its events so far, None once they had to go. ``stop`` ends the work on it.

    ``input`` are the items that it was made of; ``turn`` has its output too, and is there once it has ended.
    """

    response: Response
    owner: bytes
    input: Turn
    stop: Callable[[], None]
    turn: Turn | None = None
    frames: list[bytes] | None = field(default_factory=list)
    size: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: bool = False
    kept: bool = False
    since: float = 0.0
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> None:
        """Tell those who follow."""
        self._news.set()
        self._news = asyncio.Event()

    def told(self) -> list[bytes]:
        """The frames so far. Raises ``BadRequest`` where they are gone."""
        if self.frames is None:
            raise BadRequest("the events of this response are not kept any more: there were too many", "stream")
        return self.frames

    async def follow(self, start: int) -> AsyncGenerator[bytes]:
        """Frames from number ``start`` on, until the response has ended."""
        while True:
            # The event first: what is told between a look at the frames and the wait must not be missed.
            news, ended = self._news, self.ended.is_set()
            fresh = self.told()[start : start + _AT_ONCE]
            if fresh:
                start += len(fresh)
                yield b"".join(fresh)
            elif ended:
                return
            else:
                await news.wait()


class Store:
    """Entries by id, the oldest first. ``clock``: seconds, monotonic."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic):
        self.limits = limits
        self.size = 0
        self._entries: dict[str, Entry] = {}
        self._clock = clock

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, name: str, owner: bytes, param: str = "response_id") -> Entry:
        """Raises ``NotFound`` for an id that is not kept, or is another key's."""
        self._expire()
        entry = self._entries.get(name)
        if entry is None or entry.owner != owner:
            raise NotFound(f"Response with id {name[:100]!r} not found.", param)
        return entry

    def add(self, entry: Entry) -> None:
        """Keep ``entry``. Raises ``Overloaded`` where all that are kept still run."""
        self._expire()
        while len(self._entries) >= self.limits.count:
            if not self._evict():
                raise Overloaded(
                    f"{self.limits.count} responses are in work (--response-store-count); try again later, "
                    "or with store false",
                    "store",
                )
        self._entries[entry.response.id] = entry
        entry.kept = True
        self._hold(entry.input)
        self._charge(entry, weight(entry.response) + _OVERHEAD)

    def tell(self, entry: Entry, frames: Sequence[bytes]) -> None:
        """Add events to ``entry``; where there is no room for them it goes on without any."""
        if entry.frames is not None:
            entry.frames += frames
            if entry.kept:
                self._charge(entry, _size(frames))
        entry.wake()

    def end(self, entry: Entry, output: Sequence[AnyItem]) -> None:
        """``entry`` has ended, with ``output``: others may go on from there, and it may be thrown out."""
        entry.since = self._clock()
        entry.stop = nothing  # it holds the request, with the whole conversation in it
        if entry.kept:
            entry.turn = Turn(entry.input, output, weight(output))
            self._hold(entry.turn)
            self._charge(entry, weight(entry.response.output))
        entry.ended.set()
        entry.wake()
        self._shrink()

    def remove(self, entry: Entry) -> None:
        """Forget ``entry``, and end the work on it."""
        self._drop(entry)
        entry.cancelled = True
        entry.stop()

    def _charge(self, entry: Entry, size: int) -> None:
        entry.size += size
        self.size += size
        self._shrink()
        if self.size > self.limits.size and entry.frames is not None and not entry.ended.is_set():
            freed = _size(entry.frames)
            entry.frames = None
            entry.size -= freed
            self.size -= freed

    def _expire(self) -> None:
        end = self._clock() - self.limits.age
        for entry in [entry for entry in self._entries.values() if entry.ended.is_set() and entry.since < end]:
            self._drop(entry)

    def _shrink(self) -> None:
        while self.size > self.limits.size and self._evict():
            pass

    def _evict(self) -> bool:
        """Throw out the one that was made first of those that have ended; False where there is none."""
        oldest = next((entry for entry in self._entries.values() if entry.ended.is_set()), None)
        if oldest is not None:
            self._drop(oldest)
        return oldest is not None

    def _drop(self, entry: Entry) -> None:
        if not entry.kept:
            return
        entry.kept = False
        del self._entries[entry.response.id]
        self.size -= entry.size
        self._release(entry.input)
        if entry.turn is not None:
            self._release(entry.turn)

    def _hold(self, turn: Turn | None) -> None:
        while turn is not None:
            turn.uses += 1
            if turn.uses > 1:
                return
            self.size += turn.size
            turn = turn.before

    def _release(self, turn: Turn | None) -> None:
        while turn is not None:
            turn.uses -= 1
            if turn.uses:
                return
            self.size -= turn.size
            turn = turn.before


def nothing() -> None:
    pass


def _size(frames: Sequence[bytes]) -> int:
    return sum(map(len, frames)) + _FRAME_OVERHEAD * len(frames)
