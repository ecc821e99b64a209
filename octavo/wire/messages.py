"""What travels between a front and an engine core in its own process: the methods of CorePort as data."""

from typing import Any, TypeAlias

from msgspec import Struct

from octavo.wire.hello import Ready
from octavo.wire.reply import AbortReason, StepReply
from octavo.wire.request import EngineRequest
from octavo.wire.vocabulary import Vocabulary


class Join(Struct, tag="join", array_like=True, frozen=True):
    """A client is there; ``pid`` so that the core sees it go. Its number is the name of its socket."""

    pid: int


class Add(Struct, tag="add", array_like=True, frozen=True):
    requests: list[EngineRequest]


class Abort(Struct, tag="abort", array_like=True, frozen=True):
    handles: list[int]
    reason: AbortReason


class Call(Struct, tag="call", array_like=True, frozen=True):
    """``id`` names the answer."""

    id: int
    command: str
    args: list[Any]


class Teach(Struct, tag="teach", array_like=True, frozen=True):
    """The vocabulary, before the first request that brings a grammar. One that is known already changes nothing."""

    vocabulary: Vocabulary


class Close(Struct, tag="close", array_like=True, frozen=True):
    """From the client that started the core: end everything now. From another: it leaves."""


class Up(Struct, tag="up", array_like=True, frozen=True):
    """The answer to Join once the core can serve. ``pid`` is the core's."""

    ready: Ready
    pid: int


class Down(Struct, tag="down", array_like=True, frozen=True):
    """The core cannot start or cannot go on. ``kind`` is the name of the error's class."""

    kind: str
    text: str


class Told(Struct, tag="told", array_like=True, frozen=True):
    reply: StepReply


class Answer(Struct, tag="answer", array_like=True, frozen=True):
    """Of a Call. ``kind`` is the error's class where there was one."""

    id: int
    value: Any = None
    error: str | None = None
    kind: str = ""


class Stalled(Struct, tag="stalled", array_like=True, frozen=True):
    """The watchdog's word, on a socket of its own, since the loop that serves the other one hangs. None: it moves."""

    text: str | None


ToCore: TypeAlias = Join | Add | Abort | Call | Teach | Close
ToClient: TypeAlias = Up | Down | Told | Answer | Stalled
