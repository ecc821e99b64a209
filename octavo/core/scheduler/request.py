"""Request: one answer being made, from its arrival to its last token."""

import enum
from dataclasses import dataclass, field
from typing import Protocol

from octavo.core.kv.manager import Tables
from octavo.core.scheduler.lookup import Lookup
from octavo.core.scheduler.trust import Trust
from octavo.wire.arrays import Ints, unpack_tokens
from octavo.wire.request import EngineRequest
from octavo.wire.result import LogprobArrays, joined


class State(enum.Enum):
    """BLOCKED: waits for something outside the loop, a grammar or its mask. WAITING: for a row. RUNNING: has one."""

    BLOCKED = 0
    WAITING = 1
    RUNNING = 2
    DONE = 3


class Ruler(Protocol):
    """A grammar that follows what a request says."""

    def accept(self, token: int) -> bool:
        """False: the token breaks it."""

    def drafts(self, limit: int) -> list[int]:
        """At most ``limit`` tokens about which it leaves no choice."""

    @property
    def dear(self) -> bool:
        """Whether what it lets through takes too long to be worked out in the loop."""


@dataclass(slots=True, eq=False)
class Request:
    """``tokens`` and ``told`` are true while the request has no row; with a row the columns are.

    ``rank``: smaller goes first and is preempted last. ``scored``: prompt log-probabilities delivered so far.
    ``scheduled``: whether it ever had a row. ``awaits``: hash of the page for which it waits, since another request
    computes it; empty for none. ``lookup``: where its tokens came before, once a drafter wants to know. ``trust``: how
    good its drafts were, where only good ones are made. ``busy``: somebody off the loop works with its grammar.
    """

    wire: EngineRequest
    rank: tuple[int, float, int]
    root: bytes
    tables: Tables
    tokens: Ints = field(init=False)
    prompt: int = field(init=False)
    state: State = State.BLOCKED
    row: int = -1
    epoch: int = 0
    told: int = 0
    hashes: list[bytes] = field(default_factory=list)
    awaits: bytes = b""
    logprobs: list[LogprobArrays] = field(default_factory=list)
    scored: int = 0
    scheduled: bool = False
    grammar: Ruler | None = None
    many_stops: frozenset[int] = frozenset()
    lookup: Lookup | None = None
    trust: Trust | None = None
    busy: bool = False

    def __post_init__(self) -> None:
        self.tokens = unpack_tokens(self.wire.tokens)
        self.prompt = self.told = len(self.tokens)

    @property
    def key(self) -> tuple[int, int]:
        return self.wire.client, self.wire.handle

    @property
    def reads_cache(self) -> bool:
        """Prompt log-probabilities need every position computed, so they never read the cache."""
        return self.wire.read_cache and self.wire.sampling.prompt_logprobs is None

    def take_logprobs(self) -> LogprobArrays | None:
        """The log-probabilities gathered since the last call, as one block."""
        if not self.logprobs:
            return None
        pieces, self.logprobs = self.logprobs, []
        return joined(pieces)
