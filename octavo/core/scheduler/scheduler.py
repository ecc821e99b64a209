"""Scheduler: requests in, plans out, results in, replies out."""

import time

from octavo.config.engine import ScheduleSection
from octavo.core.kv.manager import KVManager
from octavo.core.scheduler.book import Book
from octavo.core.scheduler.burst import Pace
from octavo.core.scheduler.columns import LOGPROBS, PROMPT_LOGPROBS
from octavo.core.scheduler.drafts import Drafts
from octavo.core.scheduler.planning import Planner
from octavo.core.scheduler.replies import Replies
from octavo.core.scheduler.request import Request
from octavo.core.scheduler.update import Updater
from octavo.errors import RequestError
from octavo.wire.arrays import outside, unpack_tokens
from octavo.wire.hello import Limits
from octavo.wire.plan import StepPlan
from octavo.wire.reply import AbortReason, Admitted, Refused
from octavo.wire.request import EngineRequest
from octavo.wire.result import StepExtras, StepResult

#: What a column holds.
_MAX_INT = 2**31 - 1


class Scheduler:
    """Continuous batching with chunked prefill under one budget of tokens a step.

    ``vocab``: width of the logits. ``closing`` and ``paused`` are switches of the engine: no new requests; no plans.
    ``pace`` is told by the engine when plans are launched and sub-steps retired.
    """

    def __init__(
        self,
        schedule: ScheduleSection,
        kv: KVManager,
        max_model_len: int,
        vocab: int,
        limits: Limits | None = None,
        replies: Replies | None = None,
        pace: Pace | None = None,
    ):
        self.schedule_section = schedule
        self.max_model_len = max_model_len
        self.vocab = vocab
        self.limits = limits or Limits()
        self.replies = replies if replies is not None else Replies()
        self.book = Book(schedule, kv, max_model_len, self.replies)
        self.closing = False
        self.paused = False
        speculation = schedule.speculation if self.limits.drafts else None
        drafts = None if speculation is None else Drafts(self.book, speculation, self.limits.drafts)
        self.pace = pace if pace is not None else Pace(schedule.burst_ms / 1e3)
        self._planner = Planner(self.book, vocab, self.pace, drafts)
        self._updater = Updater(self.book)

    @property
    def unfinished(self) -> int:
        """Requests that are not answered to their end."""
        return len(self.book.live)

    def add(self, wire: EngineRequest) -> Request | None:
        """Take a request, or refuse it with the reason; the answer is among the replies. The taken one is not queued
        yet: see ``queue``."""
        refused = self._refusal(wire)
        if refused is not None:
            self.replies.answer(wire.client, refused)
            return None
        return self.book.add(wire)

    def queue(self, request: Request) -> None:
        """The request waits for nothing but a row."""
        self.replies.answer(request.wire.client, Admitted(request.wire.handle))
        self.book.push(request)
        self.pace.arrived(time.monotonic())

    def refuse(self, request: Request, error: RequestError) -> None:
        """A request that was not queued yet turns out to be wrong."""
        answer = Refused(request.wire.handle, error.status, error.message, error.param)
        self.replies.answer(request.wire.client, answer)
        self.book.forget(request)

    def abort(self, client: int, handles, reason: AbortReason) -> None:
        self.book.abort(client, handles, reason)

    def schedule(self) -> StepPlan | None:
        """The next plan, or None if there is nothing to tell the device."""
        now = time.monotonic()
        self.book.expire(now)
        return self._planner.plan(now, idle=self.paused)

    @property
    def goes_on(self) -> bool:
        """Whether the last pass ended where it had done enough at once."""
        return self._planner.prompts.goes_on

    def wants_extras(self, plan: StepPlan) -> bool:
        """Whether the step's bulky results will be looked at."""
        if plan.transfer is not None:
            return True
        return self.book.bulky > 0 and bool((self.book.columns.flags[plan.rows] & (LOGPROBS | PROMPT_LOGPROBS)).any())

    def update(self, plan: StepPlan, result: StepResult, extras: StepExtras | None = None) -> None:
        """Apply one retired sub-step."""
        self._updater.update(plan, result, extras)

    @property
    def _waiting(self) -> int:
        """Requests for which there will be no row in the next pass."""
        book = self.book
        free = max(0, min(book.most_running - len(book.running), book.rows.available))
        return len(book.live) - len(book.running) - free

    def _refusal(self, wire: EngineRequest) -> Refused | None:
        """Why a request cannot run. The front has checked it; what gets here in spite of that must not stop others."""
        book = self.book

        def no(status: int, reason: str, param: str | None = None, retry: float = 0.0) -> Refused:
            return Refused(wire.handle, status, reason, param, retry)

        if self.closing:
            return no(503, "the engine is shutting down")
        if (wire.client, wire.handle) in book.live:
            return no(400, f"handle {wire.handle} is already in use")
        if not wire.tokens or len(wire.tokens) % 4:
            return no(400, "the prompt must not be empty", "prompt")
        tokens = unpack_tokens(wire.tokens)
        if outside(tokens, self.vocab):
            bad = tokens[(tokens < 0) | (tokens >= self.vocab)][0]
            return no(400, f"the prompt has the token id {bad}; ids go from 0 to {self.vocab - 1}", "prompt")
        if wire.limit > self.max_model_len:
            return no(400, f"{wire.limit} tokens are over the longest length, {self.max_model_len}", "max_tokens")
        if wire.limit < len(tokens):
            return no(400, f"the limit of {wire.limit} tokens is below the prompt's {len(tokens)}", "max_tokens")
        for name in ("handle", "every", "min_length"):
            if not 0 <= (value := getattr(wire, name)) <= _MAX_INT:
                return no(400, f"{name} must be from 0 to {_MAX_INT}, got {value}")
        if wire.adapter is not None and not self.limits.adapters:
            return no(501, f"this engine has no adapters, so not {wire.adapter.name!r} either", "model")
        if wire.media and not self.limits.media:
            return no(501, "this model takes no media")
        most = self.schedule_section.max_waiting
        if most and self._waiting >= most:
            return no(429, f"{most} requests are waiting already (--max-waiting); try again later", retry=1.0)
        most = self.schedule_section.max_waiting_tokens
        if most and (backlog := book.backlog) and backlog + len(tokens) > most:
            return no(
                429,
                f"{backlog} prompt tokens wait to be computed, and {len(tokens)} more would pass the limit of {most} "
                "(--max-waiting-tokens); try again later",
                retry=1.0,
            )
        return None
