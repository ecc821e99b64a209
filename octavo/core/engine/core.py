"""EngineCore: the one loop, for every depth. It launches steps, retires the oldest, and tells what came of it."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.common.log import logger
from octavo.config.engine import EngineConfig
from octavo.core.engine import commands
from octavo.core.engine.boot import Booted, boot
from octavo.core.engine.inbox import Aborts, Adds, Compiled, Followed, Inbox, Job, Taught
from octavo.core.engine.masking import Masking
from octavo.core.engine.watchdog import Watchdog
from octavo.core.executor.inline import make_worker
from octavo.core.grammar.base import Compiler
from octavo.core.grammar.manager import Follower, Grammars
from octavo.core.grammar.reasoning import FREE
from octavo.core.scheduler.burst import Pace
from octavo.core.scheduler.replies import Replies
from octavo.core.scheduler.request import Request, State
from octavo.core.scheduler.scheduler import Scheduler
from octavo.errors import EngineDead, RequestError
from octavo.wire.arrays import NO_INTS
from octavo.wire.hello import Ready
from octavo.wire.plan import StepPlan
from octavo.wire.ports import Ticket, WorkerPort
from octavo.wire.reply import AbortReason, Refused, StepReply
from octavo.wire.request import EngineRequest
from octavo.wire.result import StepExtras, StepResult
from octavo.wire.vocabulary import Vocabulary

log = logger(__name__)

#: Seconds between two reports of counters while steps run.
STATS_EVERY = 0.25
#: A step that is so many times ``step_timeout`` late will not come any more.
GIVE_UP = 5


class EngineCore:
    """A ``CorePort`` in this process: ``poll`` runs a step. ``add``, ``abort`` and ``call`` may come from any thread;
    ``poll`` from one at a time.

    ``worker``: built from ``config.worker`` when it is None. ``compiler``: a grammar engine. ``pace``: what bursts of
    decode steps follow, where it is not time.
    """

    def __init__(
        self,
        config: EngineConfig,
        worker: WorkerPort | None = None,
        inbox: Inbox | None = None,
        compiler: Compiler | None = None,
        pace: Pace | None = None,
    ):
        self.config = config
        self.inbox = inbox if inbox is not None else Inbox()
        self.dead: str | None = None
        self.steps = 0
        self.faults = 0
        #: 0 awake; 1 and 2 as the command ``sleep`` says.
        self.asleep = 0
        self.lead = config.schedule.depth - 1
        self._worker = worker
        self._compiler = compiler
        self._pace = pace
        self._booted: Booted | None = None
        self._inflight: deque[tuple[StepPlan, Ticket]] = deque()
        self._lock = threading.RLock()
        self._told = 0.0
        self.spent = Spent()
        self._closed = False
        self._interrupt: BaseException | None = None
        #: There was nothing to plan, and nothing has come in since.
        self._waits = False

    # CorePort.

    def start(self) -> Ready:
        """Load, build, be ready. A second call gives the same answer."""
        if self._booted is None:
            if self._worker is None:
                self._worker = make_worker(self.config)
            self._booted = booted = boot(self.config, self._worker)
            self.replies = Replies()
            ready = booted.ready
            self.scheduler = Scheduler(
                self.config.schedule,
                booted.kv,
                ready.max_model_len,
                ready.vocab,
                ready.limits,
                self.replies,
                self._pace,
            )
            self.grammars: Grammars[Request] = Grammars(
                self._compiler, ready.vocab, self._compiled, gone=lambda request: request.state is State.DONE
            )
            self.masking = Masking(self.scheduler, self.grammars, lambda work: self.inbox.put(Followed(work)))
            self.watchdog = Watchdog(self.config.schedule.step_timeout)
        return self._booted.ready

    def add(self, requests: Sequence[EngineRequest]) -> None:
        self._check_alive()
        self.inbox.put(Adds(requests))

    def abort(self, handles: Sequence[int], reason: AbortReason = AbortReason.CLIENT, client: int = 0) -> None:
        self.inbox.put(Aborts(client, handles, reason))

    def teach(self, vocabulary: Vocabulary) -> None:
        self._check_alive()
        self.inbox.put(Taught(vocabulary))

    def poll(self, timeout: float | None = 0.0) -> list[StepReply]:
        """Run a step. With nothing to run it sleeps up to ``timeout`` seconds (None: until something arrives). Raises
        ``EngineDead`` when the core itself has failed."""
        self._check_alive()
        with self._lock:
            replies = self.step()
        if replies or self._inflight:
            return replies
        if timeout == 0.0 or self.runnable:
            return replies
        self.rest(timeout)
        with self._lock:
            return self.step()

    def call(self, command: str, *args: Any, timeout: float = 60.0) -> Any:
        """Raises ``ValueError`` for an unknown command and ``TimeoutError`` when the loop does not come to it."""
        if command == "health":  # must answer while a step hangs
            return commands.health(self)
        self._check_alive()
        job = Job(command, args)
        self.inbox.put(job)
        if not self._lock.acquire(timeout=timeout):
            raise TimeoutError(f"the engine did not come to {command!r} within {timeout:g} seconds")
        try:
            if not job.done:
                self._take()
        except BaseException as error:
            self._note_death(error)
            raise
        finally:
            self.inbox.ring()  # with the command came whatever else had arrived, and ``poll`` may be about to sleep
            self._lock.release()
        if job.error is not None:
            raise job.error
        return job.answer

    def close(self, deadline: float = 5.0) -> None:
        """End all requests, let what is in flight come back, close the worker."""
        if self._closed:
            return
        self._closed = True
        if self._booted is not None:
            until = time.monotonic() + deadline
            if self._lock.acquire(timeout=deadline):
                try:
                    self.scheduler.book.abort_all(AbortReason.SHUTDOWN)
                    while self._inflight and self.dead is None:
                        self._inflight.popleft()[1].wait(max(0.0, until - time.monotonic()))
                except Exception as error:
                    log.warning("the last step did not end well: %s", error)
                finally:
                    self._lock.release()
            self.grammars.close()
            self.masking.close()
            self.watchdog.close()
        if self._worker is not None:
            self._worker.close()
            self._worker = None  # who keeps a closed engine does not keep its weights
        self.dead = self.dead or "the engine is closed"

    # The loop.

    @property
    def worker(self) -> WorkerPort:
        assert self._worker is not None
        return self._worker

    @property
    def outstanding(self) -> int:
        """Launched sub-steps that are not retired."""
        return len(self._inflight)

    @property
    def stalled(self) -> str | None:
        return self.watchdog.stalled

    def step(self) -> list[StepReply]:
        """Take what arrived, launch until ``depth`` sub-steps are out, then retire the oldest; but whoever was answered
        before the launch hears it before anything is waited for. Never sleeps for want of work."""
        try:
            launched = self._launch()
            if self._inflight and not (launched and self.replies):
                self._retire()
        except BaseException as error:
            self._note_death(error)
            if isinstance(error, EngineDead) or not isinstance(error, Exception):
                raise
            log.exception("the engine failed")
            raise EngineDead(self.dead) from error
        finally:
            self.watchdog.end()
        if self._interrupt is not None:
            interrupt, self._interrupt = self._interrupt, None
            raise interrupt
        self._report()
        return self.replies.flush()

    def stand_down(self) -> None:
        """Pause with nobody on the device: who ran waits, and starts again from its tokens when the engine goes on."""
        self.scheduler.paused = True
        while self._inflight:
            self._retire()
        for request in list(self.scheduler.book.running):
            self.scheduler.book.preempt(request)
        plan = self.scheduler.schedule()  # it only tells which rows are free
        if plan is not None:
            self._send_out(plan, time.monotonic())
        while self._inflight:
            self._retire()
        self.watchdog.end()

    def _launch(self) -> bool:
        """Whether anything was launched."""
        launched = False
        while True:
            self._take()
            if len(self._inflight) > self.lead or (launched and self.replies):
                return launched
            begin = time.monotonic()
            plan = self.scheduler.schedule()
            self._waits = plan is None and not self.scheduler.goes_on
            if plan is None:
                return launched
            planned = time.monotonic()
            self.spent.plan += planned - begin
            self.watchdog.begin(f"step {plan.step}")
            self._send_out(plan, begin)
            self.spent.launch += time.monotonic() - planned
            launched = True

    def _send_out(self, plan: StepPlan, begun: float) -> None:
        tickets = self._start_step(plan)
        self._inflight.extend((plan, ticket) for ticket in tickets)
        self.scheduler.pace.launched(plan, begun)

    def _start_step(self, plan: StepPlan) -> Sequence[Ticket]:
        """The tickets of a launched plan. Whatever goes wrong with the launch becomes the fault of its steps."""
        try:
            self.worker.forward(plan)
        except EngineDead:
            raise
        except BaseException as error:
            with contextlib.suppress(Exception):
                self.worker.sample(None)  # a worker that was interrupted waits for the other half of the step
            return self._not_launched(plan, error)
        if plan.awaits is not None:
            self._retire(until=plan.awaits)
        masks = self.masking.masks(plan)
        try:
            tickets = self.worker.sample(masks)
            assert len(tickets) == plan.repeat, "the worker owes one ticket a sub-step"
        except EngineDead:
            raise
        except BaseException as error:
            return self._not_launched(plan, error)
        return tickets

    def _not_launched(self, plan: StepPlan, error: BaseException) -> Sequence[Ticket]:
        log.error("step %d could not be launched", plan.step, exc_info=error)
        self._note_interrupt(error)
        return [Failed(plan.step + part, error) for part in range(plan.repeat)]

    def _note_interrupt(self, error: BaseException) -> None:
        """Ctrl-C while the device works is passed on, but only when the books are right again."""
        if not isinstance(error, Exception):
            self._interrupt = error

    def _retire(self, until: int | None = None) -> None:
        """The oldest sub-step, or all up to ``until``."""
        while self._inflight and (until is None or self._inflight[0][1].step <= until):
            plan, ticket = self._inflight.popleft()
            self._waits = False
            self.watchdog.begin(f"step {ticket.step}")
            begin = time.monotonic()
            result, extras = self._result(plan, ticket)
            came = time.monotonic()
            self.scheduler.pace.retired(ticket.step, came)
            self.scheduler.update(plan, result, extras)
            self.masking.hand_over()
            self.steps += 1
            self.spent.wait += came - begin
            self.spent.plan += time.monotonic() - came
            if until is None:
                return

    def _result(self, plan: StepPlan, ticket: Ticket) -> tuple[StepResult, StepExtras | None]:
        """What came of a step; whatever goes wrong with it becomes its fault."""
        timeout = self.config.schedule.step_timeout
        late = 0
        while True:
            try:
                result = ticket.wait(timeout)
                fault = result.fault
                if fault is None:
                    return result, ticket.extras() if self.scheduler.wants_extras(plan) else None
                break
            except TimeoutError:
                late += 1
                if late == GIVE_UP:
                    raise EngineDead(f"step {ticket.step} did not end within {GIVE_UP * timeout:.0f} seconds") from None
            except EngineDead:
                raise
            except BaseException as error:
                log.exception("step %d failed", ticket.step)
                self._note_interrupt(error)
                fault = f"{type(error).__name__}: {error}"
                break
        self.faults += 1
        log.error("step %d failed with %d requests in it: %s", ticket.step, len(plan.rows), fault)
        return failed(ticket.step, fault), None

    # What arrives.

    def _take(self) -> None:
        self.masking.expire()
        for event in self.inbox.drain():
            self._waits = False
            if isinstance(event, Adds):
                for wire in event.requests:
                    self._add(wire)
            elif isinstance(event, Aborts):
                if event.handles is None:
                    self.scheduler.book.abort_all(event.reason, event.client)
                else:
                    self.scheduler.abort(event.client, event.handles, event.reason)
            elif isinstance(event, Compiled):
                self._add_compiled(event.request, event.outcome)
            elif isinstance(event, Followed):
                self.masking.arrived(event.work)
            elif isinstance(event, Taught):
                self.grammars.teach(self.config.grammar, event.vocabulary)
            else:
                self._run(event)

    def _add(self, wire: EngineRequest) -> None:
        if wire.grammar is not None and self.grammars.compiler is None and wire.grammar.kind != FREE:
            answer = Refused(wire.handle, 501, "this engine has no structured output", "structured_outputs")
            self.replies.answer(wire.client, answer)
            return
        request = self.scheduler.add(wire)
        if request is None:
            return
        if wire.grammar is None:
            self.scheduler.queue(request)
        else:
            self.grammars.start(request, wire.grammar, wire.stops)

    def _compiled(self, request: Request, outcome: Follower | RequestError) -> None:
        self.inbox.put(Compiled(request, outcome))

    def _add_compiled(self, request: Request, outcome: Follower | RequestError) -> None:
        if request.state is State.DONE:  # aborted meanwhile
            return
        if isinstance(outcome, RequestError):
            self.scheduler.refuse(request, outcome)
        else:
            self.masking.queue(request, outcome)

    def _run(self, job: Job) -> None:
        try:
            job.answer = commands.run(self, job.command, job.args)
        except Exception as error:
            job.error = error
        job.done = True
        if job.tell is not None:
            job.tell(job)
        if isinstance(job.error, EngineDead):  # a device that is gone for a command is gone for steps too
            raise job.error

    # Odds and ends.

    @property
    def runnable(self) -> bool:
        """Whether the next step would find something to launch: only then is there no reason to sleep."""
        book = self.scheduler.book
        if book.held and self._waits:
            return False  # for masks, which come through the inbox
        return bool(book.freed) or (bool(book.running or book.queue) and not self.scheduler.paused)

    def rest(self, timeout: float | None) -> None:
        """With nothing to run: let the device make ready what a later step would wait for, then sleep until something
        arrives, at most ``timeout`` seconds and not past anybody's deadline."""
        with self._lock:
            again = None if self.asleep else self.worker.idle()
        patience = self.patience(timeout)
        self.inbox.wait(patience if again is None else min(again, again if patience is None else patience))

    def patience(self, timeout: float | None) -> float | None:
        """How long to sleep: not past anybody's deadline, nor that of a mask under way."""
        deadlines = (self.scheduler.book.next_deadline(), self.masking.lane.next_deadline())
        due = min((one for one in deadlines if one is not None), default=None)
        if due is None:
            return timeout
        left = max(0.0, due - time.monotonic())
        return left if timeout is None else min(left, timeout)

    def _report(self) -> None:
        """Counters, a few times a second, and whenever the last request ends."""
        book = self.scheduler.book
        now = time.monotonic()
        if (now - self._told >= STATS_EVERY and book.counters.steps) or (self.replies and not book.live):
            self._told = now
            self.replies.stats(book.take_stats(), {client for client, _ in book.live})

    def _note_death(self, error: BaseException) -> None:
        self.dead = self.dead or f"the engine failed: {type(error).__name__}: {error}"

    def _check_alive(self) -> None:
        if self.dead is not None:
            raise EngineDead(self.dead)


@dataclass(slots=True)
class Spent:
    """Seconds of the loop since the start: planning and reading results, launching steps (on a CPU that is the
    computing), waiting for them. A step that masks wait for counts under ``launch`` too."""

    plan: float = 0.0
    launch: float = 0.0
    wait: float = 0.0

    @property
    def busy(self) -> float:
        return self.plan + self.launch + self.wait


class Failed:
    """The ticket of a step that raised while it was launched."""

    def __init__(self, step: int, error: BaseException):
        self.step = step
        self._fault = f"{type(error).__name__}: {error}"

    def ready(self) -> bool:
        return True

    def wait(self, timeout: float | None = None) -> StepResult:
        return failed(self.step, self._fault)

    def extras(self) -> StepExtras:
        return StepExtras()


def failed(step: int, fault: str) -> StepResult:
    """The result of a step that gave nothing."""
    return StepResult(step, NO_INTS.astype(np.int64), NO_INTS, fault)
