"""Inbox: everything that reaches the loop from outside, in one order, with one place to sleep."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from octavo.core.grammar.lane import Work
from octavo.core.grammar.manager import Follower
from octavo.core.scheduler.request import Request
from octavo.errors import RequestError
from octavo.wire.reply import AbortReason
from octavo.wire.request import EngineRequest
from octavo.wire.vocabulary import Vocabulary


@dataclass(slots=True)
class Adds:
    requests: Sequence[EngineRequest]


@dataclass(slots=True)
class Aborts:
    """``handles`` None: all of the client's."""

    client: int
    handles: Sequence[int] | None
    reason: AbortReason


@dataclass(slots=True)
class Compiled:
    """A grammar is ready, or is wrong."""

    request: Request
    outcome: Follower | RequestError


@dataclass(slots=True)
class Followed:
    """A grammar was followed off the loop."""

    work: Work[Request]


@dataclass(slots=True)
class Taught:
    """What grammars are made of."""

    vocabulary: Vocabulary


@dataclass(slots=True)
class Job:
    """A command and where its answer goes."""

    command: str
    args: tuple
    done: bool = False
    answer: Any = None
    error: BaseException | None = None
    tell: Callable[["Job"], None] | None = field(default=None, repr=False)


Event: TypeAlias = Adds | Aborts | Compiled | Followed | Taught | Job


class Inbox:
    """May be filled from any thread; drained by the loop."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._arrived = threading.Condition()
        self._rung = False

    def put(self, event: Event) -> None:
        with self._arrived:
            self._events.append(event)
            self._arrived.notify()

    def drain(self) -> list[Event]:
        """All events so far, oldest first. Never blocks."""
        if not self._events:
            return []
        with self._arrived:
            events = list(self._events)
            self._events.clear()
        return events

    def ring(self) -> None:
        """Wake whoever waits, or will wait next: what it waits for was taken out by somebody else."""
        with self._arrived:
            self._rung = True
            self._arrived.notify()

    def wait(self, timeout: float | None) -> None:
        """Sleep until there is an event, at most ``timeout`` seconds (None: without end)."""
        with self._arrived:
            if not self._events and not self._rung:
                self._arrived.wait(timeout)
            self._rung = False
