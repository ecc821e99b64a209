"""The three seams, as Protocols: front -> core (CorePort), core -> device (WorkerPort), results -> core (Ticket).

In one process they are method calls; across processes msgpack over ZeroMQ. ``testing.fakes.FakeWorker`` is a third
WorkerPort: everything above the device is tested without a model.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from octavo.wire.hello import Hello, Ready
from octavo.wire.kv import KVLayout
from octavo.wire.plan import GrammarMasks, StepPlan
from octavo.wire.reply import AbortReason, StepReply
from octavo.wire.request import EngineRequest
from octavo.wire.result import StepExtras, StepResult
from octavo.wire.vocabulary import Vocabulary


class Ticket(Protocol):
    """One step's results on their way to the host."""

    step: int

    def ready(self) -> bool:
        """Whether ``wait`` would return at once."""

    def wait(self, timeout: float | None = None) -> StepResult:
        """Tokens and counts. Raises ``TimeoutError`` after ``timeout`` seconds."""

    def extras(self) -> StepExtras:
        """Log-probabilities and other bulk; may block longer than ``wait``."""


class WorkerPort(Protocol):
    """A device (all ranks of it) as the core sees it."""

    def hello(self) -> Hello:
        """Needs, sizes and limits, once the weights are loaded."""

    def build(self, layout: KVLayout, max_model_len: int) -> None:
        """Allocate the cache and row state; warm up. After it the worker takes plans."""

    def forward(self, plan: StepPlan) -> None:
        """Start a step: apply its writes, run the model. Never waits for the device. ``plan.rows`` may be empty.

        An error here is remembered and comes out of the step's ticket as a fault.
        """

    def sample(self, masks: GrammarMasks | None) -> Sequence[Ticket]:
        """Finish the step that ``forward`` began: ``plan.repeat`` tickets, in order; one for a plan without rows."""

    def idle(self) -> float | None:
        """With no step in flight: make something ready that a later step would wait for, in a fraction of a second.
        Gives the seconds after which to ask again, None where nothing is left to do."""

    def call(self, command: str, *args: Any) -> Any:
        """Everything else (``profile``, ``stats``, ...). An unknown command raises ``ValueError`` naming the known."""

    def close(self) -> None:
        """Give everything back. May be called twice."""


class CorePort(Protocol):
    """An engine core as a front sees it."""

    def start(self) -> Ready:
        """Wait until the core can serve. Raises ``ConfigError`` or ``EngineDead`` with the reason."""

    def add(self, requests: Sequence[EngineRequest]) -> None:
        """Hand over requests; requests of one call arrive together."""

    def abort(self, handles: Sequence[int], reason: AbortReason) -> None:
        """End requests. Unknown or finished handles are ignored: the answer may have crossed the abort."""

    def teach(self, vocabulary: Vocabulary) -> None:
        """Tell what grammars are made of, before the first request that brings one; later calls change nothing."""

    def poll(self, timeout: float | None = 0.0) -> list[StepReply]:
        """Replies so far; inline it runs a step, remote it receives, waiting up to ``timeout`` seconds."""

    def call(self, command: str, *args: Any, timeout: float = 60.0) -> Any:
        """Run a named command in the core (``core.engine.commands``) and return its answer."""

    def close(self, deadline: float = 5.0) -> None:
        """Stop the core within ``deadline`` seconds. May be called twice."""
