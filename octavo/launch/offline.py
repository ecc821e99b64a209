"""Offline: front and core joined in this process; ``run`` drives the core's loop until every request has its answer."""

import gc
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from octavo.config.engine import EngineConfig
from octavo.core.engine.core import EngineCore
from octavo.errors import EngineDead, RequestError
from octavo.front.fanout import Desk, Group
from octavo.front.intake import Intake, Prompt
from octavo.launch.text import front_of
from octavo.params import SamplingParams
from octavo.wire.ports import CorePort
from octavo.wire.reply import AbortReason
from octavo.wire.request import EngineRequest

#: Seconds that a poll waits where the core has nothing to run; then it is asked whether it still lives.
_PATIENCE = 5.0


class Offline:
    """One engine for one thread. ``core`` None: built and started from ``config``.

    Raises ``ConfigError`` where the engine cannot start.
    """

    def __init__(self, config: EngineConfig, core: CorePort | None = None):
        self.config = config
        self.tokenizer, self.chat = front_of(config)
        self.core: CorePort = core if core is not None else EngineCore(config)
        try:
            self.ready = self.core.start()
        except BaseException:
            self.core.close()
            raise
        self.intake = Intake(config, self.tokenizer, self.ready)
        self._desk = Desk()
        #: Those that are over, until ``run`` has looked at them.
        self._ended: list[Group] = []
        self._desk.on_end(self._ended.append)
        #: What ``run`` is yet to hand to the core: tokens of the prompt, and the answers.
        self._fresh: deque[tuple[int, list[EngineRequest]]] = deque()
        self._taught = False
        self._closed = False

    def add(
        self, request_id: str, prompt: Prompt, params: SamplingParams, *, priority: int = 0, salt: str | None = None
    ) -> Group:
        """Check a request and keep it: ``run`` makes its answers. An output ends at the model's length, with reason
        "length".

        Raises ``BadRequest``.
        """
        if self._closed:
            raise EngineDead("the engine was closed")
        handles = self._desk.handles(params.n)
        requests = self.intake.admit(prompt, params, handles, cap=True, every=0, priority=priority, salt=salt)
        group = Group(request_id, prompt.text, prompt.ids, params, self.tokenizer, handles, requests[0].arrival)
        if requests[0].grammar is not None and not self._taught:
            self.core.teach(self.intake.vocabulary())
            self._taught = True
        self._desk.open(group)
        self._fresh.append((len(prompt.ids), requests))
        return group

    def run(self, groups: Sequence[Group], finished: Callable[[Group], None] | None = None) -> None:
        """Until all ``groups``, which are those that were added since the last run, have ended. ``finished`` is called
        as each of them ends.

        Raises the ``RequestError`` of a request that the core refused, and ``EngineDead``. Whatever ends it early, also
        Ctrl-C, aborts what is open, and the engine can go on with other requests.
        """
        ended, left = self._ended, len(groups)
        with _interrupts() as interrupted, _uncollected():
            try:
                while left:
                    interrupted()
                    if self._fresh:
                        self.core.add(self._next())
                    for reply in self.core.poll(_PATIENCE):
                        over = self._desk.read(reply)
                        if over:
                            self.core.abort(over, AbortReason.STOP_STRING)
                    left -= len(ended)
                    for group in ended:
                        if isinstance(group.error, RequestError):
                            raise group.error
                        if finished is not None:
                            finished(group)
                    ended.clear()
            finally:
                if left:
                    self.abandon(groups)

    def _next(self) -> list[EngineRequest]:
        """What to hand to the core now: enough for a step, since the device may begin with that while the core takes
        the others; all of them where the last may be the first to run."""
        wanted = self.config.schedule.max_num_batched_tokens
        taken: list[EngineRequest] = []
        while self._fresh and (wanted > 0 or self.config.schedule.policy != "fcfs"):
            tokens, requests = self._fresh.popleft()
            taken += requests
            wanted -= tokens
        return taken

    def abandon(self, groups: Iterable[Group]) -> None:
        """Abort what is open of ``groups``, and let the core give their pages back."""
        self._fresh.clear()
        left = [handle for group in groups for handle in self._desk.close(group)]
        self._ended.clear()
        if not left:
            return
        try:
            self.core.abort(left, AbortReason.CLIENT)
            for reply in self.core.poll(0.0):
                self._desk.read(reply)
        except EngineDead:
            pass  # who waits for an answer learns it there

    def call(self, command: str, *args: Any) -> Any:
        """Run a command of the core."""
        return self.core.call(command, *args)

    def close(self) -> None:
        """Give everything back. May be called twice."""
        self._closed = True
        self.core.close()


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage collection meanwhile: a pass over all that a process has takes longer than many steps, and what a run
    makes has no cycles."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


@contextmanager
def _interrupts() -> Iterator[Callable[[], None]]:
    """Ctrl-C between steps: in the middle of one it would leave pages and rows in a state that nobody knows.

    Gives a function that raises what the interrupt would have raised, once it has come. A second Ctrl-C does not wait.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield lambda: None
        return
    come: list[tuple[int, Any]] = []

    def note(number: int, frame: Any) -> None:
        if come:
            before(number, frame)
        come.append((number, frame))

    def raise_it() -> None:
        if come:
            before(*come.pop())

    signal.signal(signal.SIGINT, note)
    try:
        yield raise_it
    finally:
        signal.signal(signal.SIGINT, before)
