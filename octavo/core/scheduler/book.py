"""Book: every live request, its row and its pages, and the moves between states. Passes over it are elsewhere."""

import heapq
import time
from collections.abc import Iterable

import numpy as np

from octavo.config.engine import ScheduleSection
from octavo.core.kv.manager import KVManager
from octavo.core.scheduler.columns import (
    FIRST,
    GRAMMAR,
    HELD,
    LOGPROBS,
    MANY_STOPS,
    PROMPT_LOGPROBS,
    STOPS,
    VERIFYING,
    Columns,
)
from octavo.core.scheduler.queue import WaitQueue
from octavo.core.scheduler.replies import Replies
from octavo.core.scheduler.request import Request, State
from octavo.core.scheduler.rows import Rows
from octavo.core.scheduler.steady import Steady
from octavo.wire.arrays import Ints, ints
from octavo.wire.plan import NewRow
from octavo.wire.reply import AbortReason, FinishReason, Refused, RequestDelta
from octavo.wire.request import EngineRequest
from octavo.wire.stats import StepStats

#: While no more of the pool than this is in use, rows take pages before they must.
ROOMY = 0.9


class Book:
    """``running`` holds requests with a row, in the order in which they got it; ``order`` is their rows as a column.

    ``freed``, ``killed``, ``new`` and ``diffs`` are what the next plan has to tell the device.
    """

    def __init__(self, schedule: ScheduleSection, kv: KVManager, max_model_len: int, replies: Replies):
        self.schedule = schedule
        self.kv = kv
        self.columns = Columns(schedule.rows, max_model_len)
        self.rows = Rows(schedule.rows, self.columns.uses)
        self.queue = WaitQueue()
        self.replies = replies
        self.live: dict[tuple[int, int], Request] = {}
        self.running: list[Request] = []
        self.prefilling: list[Request] = []
        self.at: list[Request | None] = [None] * schedule.rows
        self.counters = StepStats()
        self.freed: list[int] = []
        self.killed: list[int] = []
        self.new: list[Request] = []
        self.diffs: list[tuple[Request, int, int, list[int]]] = []
        #: A row takes at least one token a step, so that more rows than the budget has tokens could starve.
        self.most_running = min(schedule.max_num_seqs, schedule.max_num_batched_tokens)
        #: Prompt pages under way, by hash, and who computes them.
        self._coming: dict[bytes, Request] = {}
        #: Of those queued, how many the last pass passed over since others compute pages of theirs.
        self.followers = 0
        #: Rows whose steps have results that are fetched apart.
        self.bulky = 0
        #: Drafts that have come back, and those of them that were right.
        self.drafted = self.accepted = 0
        #: Rows whose drafts are in flight.
        self.verifying = 0
        #: Rows that are held, and what they have said that their grammars have not followed yet.
        self.held = 0
        self._unfollowed: list[tuple[Request, list[int]]] = []
        self._order: Ints | None = None
        #: About the rows, where all of them only decode and somebody has looked.
        self.steady: Steady | None = None
        self._arrivals = 0
        #: By time: (deadline, arrival, key, whether it is only for the queue). Who ended stays until it surfaces, so an
        #: entry keeps no request alive.
        self._deadlines: list[tuple[float, int, tuple[int, int], bool]] = []
        #: Tokens of those without a row.
        self.waiting_tokens = 0

    @property
    def order(self) -> Ints:
        if self._order is None:
            self._order = ints([request.row for request in self.running])
        return self._order

    # Requests come and go.

    def add(self, wire: EngineRequest) -> Request:
        """A request that was checked; it is live but not queued yet."""
        self._arrivals += 1
        rank = (wire.priority, wire.arrival) if self.schedule.policy == "priority" else (0, 0.0)
        request = Request(wire, (*rank, self._arrivals), self.kv.root(wire.adapter, wire.salt), self.kv.new_tables())
        if len(wire.stops) > STOPS:
            request.many_stops = frozenset(wire.stops)
        self.live[request.key] = request
        self.waiting_tokens += len(request.tokens)
        if wire.deadline is not None:
            heapq.heappush(self._deadlines, (wire.deadline, self._arrivals, request.key, False))
        if self.schedule.max_waiting_time:
            until = time.monotonic() + self.schedule.max_waiting_time
            heapq.heappush(self._deadlines, (until, self._arrivals, request.key, True))
        return request

    @property
    def backlog(self) -> int:
        """Prompt tokens that are not computed yet: of those without a row, and of those with one."""
        rows = [request.row for request in self.prefilling]
        return self.waiting_tokens + int((self.columns.length[rows] - self.columns.computed[rows]).sum())

    def abort(self, client: int, handles: Iterable[int], reason: AbortReason) -> None:
        for handle in handles:
            request = self.live.get((client, handle))
            if request is not None:
                self._abort(request, reason)

    def abort_all(self, reason: AbortReason, client: int | None = None) -> None:
        for request in list(self.live.values()):
            if client is None or request.wire.client == client:
                self._abort(request, reason)

    def _abort(self, request: Request, reason: AbortReason) -> None:
        error = "the deadline of the request has passed" if reason is AbortReason.DEADLINE else None
        self.finish(request, FinishReason.ABORT, error=error)

    def next_deadline(self) -> float | None:
        """When somebody's time is up, on the monotonic clock."""
        while self._deadlines and self._first_due() is None:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def _first_due(self) -> Request | None:
        """Whose deadline comes first; None where it has ended (its key may be somebody else's by now), or has left the
        queue in time."""
        _, arrival, key, queue = self._deadlines[0]
        request = self.live.get(key)
        if request is None or request.rank[-1] != arrival or (queue and request.scheduled):
            return None
        return request

    def expire(self, now: float) -> None:
        """End everybody whose deadline has passed."""
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            request = self._first_due()
            assert request is not None
            *_, queue = heapq.heappop(self._deadlines)
            if queue:
                self._turn_away(request)
            else:
                self._abort(request, AbortReason.DEADLINE)

    def _turn_away(self, request: Request) -> None:
        """It has queued for as long as any may, and nothing of it is done."""
        longest = self.schedule.max_waiting_time
        reason = f"the request has waited for {longest:g} seconds (--max-waiting-time); try again later"
        self.replies.answer(request.wire.client, Refused(request.wire.handle, 429, reason, None, max(1.0, longest / 2)))
        self.forget(request)

    def fail(self, request: Request, error: str) -> None:
        self.finish(request, FinishReason.ERROR, error=error)

    def forget(self, request: Request) -> None:
        """A request that never had a row goes without a word."""
        assert not request.scheduled
        waited = request.state is State.WAITING
        request.state = State.DONE
        if waited:
            self.queue.forget(request)
        self.waiting_tokens -= len(request.tokens)
        request.grammar = None
        del self.live[request.key]

    def finish(self, request: Request, reason: FinishReason, stop: int | None = None, error: str | None = None) -> None:
        """The one way out: tell what was not told, give back row and pages."""
        waited = request.state is State.WAITING
        if request.state is State.RUNNING:
            self._tell_rest(request, self.columns.tokens[request.row], int(self.columns.length[request.row]))
            self._leave_row(request)
        else:
            self._tell_rest(request, request.tokens, len(request.tokens))
            self.waiting_tokens -= len(request.tokens)
        request.state = State.DONE
        if waited:
            self.queue.forget(request)
        del self.live[request.key]
        request.grammar = None
        delta = RequestDelta(request.wire.handle, reason, stop, error, logprobs=request.take_logprobs())
        self.replies.delta(request.wire.client, delta)

    def _tell_rest(self, request: Request, tokens: Ints, length: int) -> None:
        told = int(self.columns.told[request.row]) if request.row >= 0 else request.told
        if length > told:
            rest = tokens[told:length].copy()
            wire = request.wire
            self.replies.tokens(ints([wire.client]), ints([wire.handle]), ints([len(rest)]), rest)
            request.told = length

    # Rows come and go.

    def enter_row(self, request: Request, computed: int) -> int:
        """Lend a row to a request whose first ``computed`` tokens the cache has."""
        c, wire = self.columns, request.wire
        row = self.rows.take()
        length = len(request.tokens)
        self.waiting_tokens -= length
        c.tokens[row, :length] = request.tokens
        c.length[row], c.pending[row], c.computed[row], c.done[row] = length, 0, computed, computed
        c.capacity[row] = len(request.tables[0]) * self.kv.page
        c.full_at[row] = computed + self.kv.page
        c.told[row], c.limit[row], c.min_length[row] = request.told, wire.limit, wire.min_length
        c.every[row], c.client[row], c.handle[row] = wire.every, wire.client, wire.handle
        c.epoch[row], c.prefill[row], c.last[row] = request.epoch, 1, -1
        c.stops[:, row] = -1
        if wire.stops:
            c.stops[: min(STOPS, len(wire.stops)), row] = wire.stops[:STOPS]
        c.flags[row] = flags = (
            (LOGPROBS if wire.sampling.logprobs is not None or wire.sampling.logprob_ids else 0)
            | (PROMPT_LOGPROBS if wire.sampling.prompt_logprobs is not None else 0)
            | (MANY_STOPS if request.many_stops else 0)
            | (GRAMMAR if request.grammar is not None else 0)
            | (FIRST if length == request.prompt else 0)
        )
        self.bulky += bool(flags & (LOGPROBS | PROMPT_LOGPROBS))
        request.row, request.state = row, State.RUNNING
        self.at[row] = request
        self.running.append(request)
        self.prefilling.append(request)
        self.new.append(request)
        self._order = self.steady = None
        return row

    def announce(self, request: Request, hashes: list[bytes], start: int) -> None:
        """The request is about to compute the pages of its prompt from ``start`` on."""
        for key in hashes[start:]:
            self._coming.setdefault(key, request)

    def comes(self, key: bytes) -> bool:
        """Whether somebody computes a page of that content just now."""
        return key in self._coming

    def last_coming(self, hashes: list[bytes], start: int, stop: int) -> bytes:
        """Of the pages ``start <= i < stop`` of a chain the last one that is computed just now, up to the first that is
        not; empty where there is none."""
        last = b""
        for key in hashes[start:stop]:
            if key not in self._coming:
                break
            last = key
        return last

    def _arrived(self, request: Request, start: int, stop: int) -> None:
        for key in request.hashes[start:stop]:
            if self._coming.get(key) is request:
                del self._coming[key]

    def _leave_row(self, request: Request) -> None:
        c, row = self.columns, request.row
        if self._coming:
            self._arrived(request, int(c.full_at[row]) // self.kv.page - 1, len(request.hashes))
        request.told = int(c.told[row])
        if c.uses[row]:
            self.killed.append(row)
        self.freed.append(row)
        if c.flags[row]:
            self.bulky -= bool(c.flags[row] & (LOGPROBS | PROMPT_LOGPROBS))
            self.verified(row)
            self.release(row)
        c.epoch[row] = -1
        c.pending[row] = 0
        self.at[row] = None
        self.rows.give(row)
        request.row = -1
        self.running.remove(request)
        if c.prefill[row]:
            self.prefilling.remove(request)
            c.prefill[row] = 0
        self._order = self.steady = None
        self.kv.release(request.tables)

    def push(self, request: Request) -> None:
        """It waits for a row, but first for who works with its grammar."""
        if request.busy:
            request.state = State.BLOCKED
        else:
            self.queue.push(request)

    def preempt(self, request: Request) -> None:
        """Finish and add again: what was published stays in the prefix cache, what is still in flight is dropped by its
        epoch and drawn again, the same, since draws are keyed by position."""
        c, row = self.columns, request.row
        request.tokens = c.tokens[row, : c.length[row]].copy()
        self._leave_row(request)
        request.epoch += 1
        self.waiting_tokens += len(request.tokens)
        self.counters.preemptions += 1
        self.push(request)

    def make_room(self, request: Request, count: int) -> bool:
        """See that ``count`` pages are free, preempting from the worst rank on. False: ``request`` itself had to go."""
        # A window moves on with every token, pages are given back when one is full: catch up before anybody has to go.
        self.kv.leave(request.tables, int(self.columns.done[request.row]))
        while self.kv.pool.free < count:
            victim = max(self.running, key=lambda other: other.rank)
            if victim is request and len(self.running) == 1:
                self.fail(request, "the KV cache is too small for this request")
                return False
            self.preempt(victim)
            if victim is request:
                return False
        return True

    def grow(self, request: Request, count: int) -> None:
        """``count`` more pages in every group; they are free."""
        start = len(request.tables[0])
        for group, pages in enumerate(self.kv.grow(request.tables, count)):
            self.diffs.append((request, group, start, pages))
        self.columns.capacity[request.row] = (start + count) * self.kv.page

    def new_row(self, request: Request) -> NewRow:
        wire, c, row = request.wire, self.columns, request.row
        length = int(c.length[row])
        history = c.tokens[row, :length].tobytes() if wire.sampling.needs_history else b""
        return NewRow(
            row,
            request.epoch,
            request.prompt,
            length,
            wire.limit,
            wire.min_length,
            wire.stops,
            wire.sampling,
            history,
            wire.adapter,
        )

    # Results.

    def verified(self, row: int) -> None:
        """No drafts of the row are in flight any more."""
        if self.columns.flags[row] & VERIFYING:
            self.columns.flags[row] &= ~VERIFYING
            self.verifying -= 1

    def hold(self, row: int) -> None:
        """Leave a row out of plans until it is released."""
        if not self.columns.flags[row] & HELD:
            self.columns.flags[row] |= HELD
            self.held += 1

    def release(self, row: int) -> None:
        if self.columns.flags[row] & HELD:
            self.columns.flags[row] &= ~HELD
            self.held -= 1

    def unfollowed(self, request: Request, tokens: list[int]) -> None:
        """A row has said tokens that its grammar is to follow off the loop: it is held from now on."""
        self.hold(request.row)
        self._unfollowed.append((request, tokens))

    def take_unfollowed(self) -> list[tuple[Request, list[int]]]:
        if not self._unfollowed:
            return []
        found, self._unfollowed = self._unfollowed, []
        return found

    def publish(self, request: Request) -> None:
        """Pages all of whose tokens are computed in retired steps: findable from now on; what left a window goes."""
        c, row = self.columns, request.row
        done = int(c.done[row])
        full = done // self.kv.page
        if self.kv.caching:
            if len(request.hashes) < full:
                known = c.tokens[row, : c.length[row]]
                self.kv.extend_hashes(request.hashes, request.root, known, request.wire.media)
            start = int(c.full_at[row]) // self.kv.page - 1
            self.kv.publish(request.tables, request.hashes, start, full)
            self._arrived(request, start, full)
        c.full_at[row] = (full + 1) * self.kv.page
        self.kv.leave(request.tables, done)

    def take_stats(self) -> StepStats:
        """Counters since the last call, and gauges."""
        stats, self.counters = self.counters, StepStats()
        stats.running = len(self.running)
        stats.waiting = len(self.live) - len(self.running)
        stats.deferred = stats.waiting - len(self.queue) + min(self.followers, len(self.queue))
        stats.kv_usage = self.kv.pool.usage
        return stats

    def check(self) -> None:
        """Assert that rows, pages and requests agree (for tests; slow)."""
        self.kv.pool.check(table for request in self.live.values() for table in request.tables)
        c = self.columns
        assert sorted(request.row for request in self.running) == sorted(np.flatnonzero(c.epoch >= 0).tolist())
        for request in self.live.values():
            if request.state is State.RUNNING:
                row = request.row
                assert self.at[row] is request
                assert c.epoch[row] == request.epoch
                assert 0 <= c.done[row] <= c.computed[row] <= c.length[row] + c.pending[row] <= c.limit[row]
                assert c.done[row] < c.full_at[row] <= c.done[row] + self.kv.page
                assert c.computed[row] <= c.capacity[row] == len(request.tables[0]) * self.kv.page
            else:
                assert request.row < 0
                assert not any(request.tables)
        for request in self._coming.values():
            assert request.state is State.RUNNING
        if (steady := self.steady) is not None:
            rows = steady.rows
            assert rows is self._order
            assert not c.flags[rows].any()
            assert not self.prefilling
            assert steady.plans <= (c.limit - c.length - c.pending)[rows].min()
            assert steady.steps <= (c.limit - c.length)[rows].min() - 1
        bulky = LOGPROBS | PROMPT_LOGPROBS
        assert self.verifying == sum(bool(c.flags[request.row] & VERIFYING) for request in self.running)
        assert self.held == sum(bool(c.flags[request.row] & HELD) for request in self.running)
        assert not self._unfollowed
        assert self.bulky == sum(bool(c.flags[request.row] & bulky) for request in self.running)
        assert sorted(r.row for r in self.prefilling) == sorted(np.flatnonzero(c.prefill).tolist())
        assert len(self.queue) == sum(request.state is State.WAITING for request in self.live.values())
        assert self.waiting_tokens == sum(len(r.tokens) for r in self.live.values() if r.state is not State.RUNNING)
