"""Masking: what rows with a grammar may say. Masks of cheap grammars are made in the loop, while the device computes
what they are for; those of dear ones in a thread (``grammar.lane``), and a row is in no plan until its own is there.

The row of a dear grammar is held from the step on whose mask is the last that is known. When that step has come back
its tokens go to the lane; when the next mask is there the row goes on. A row whose mask is not there when its step is
under way already, since nobody knew that it would be dear, is set aside until it is.
"""

import time
from collections.abc import Callable

from octavo.core.grammar.lane import Lane, Work
from octavo.core.grammar.manager import Follower, Grammars
from octavo.core.scheduler.request import Request, State
from octavo.core.scheduler.scheduler import Scheduler
from octavo.wire.plan import GrammarMasks, StepPlan


class Masking:
    """``done`` is called with each piece of work of the lane, in its thread; the loop passes it to ``arrived``."""

    def __init__(self, scheduler: Scheduler, grammars: Grammars[Request], done: Callable[[Work[Request]], None]):
        self._scheduler = scheduler
        self._book = scheduler.book
        self._grammars = grammars
        self.lane: Lane[Request] = Lane(done, gone=lambda request: request.state is State.DONE)

    def queue(self, request: Request, follower: Follower) -> None:
        """The grammar of a request is there: it waits for a row, and for its first mask where that is dear."""
        request.grammar = follower
        if follower.dear:
            self._take(request, follower, [])
        self._scheduler.queue(request)

    def masks(self, plan: StepPlan) -> GrammarMasks | None:
        """For the rows of a plan whose tokens up to here are known."""
        if not len(plan.masked):
            return None
        requests: list[Request | None] = []
        for index in plan.masked.tolist():
            request = self._book.at[plan.rows[index]]
            requests.append(request if request is not None and request.epoch == plan.epochs[index] else None)
        followers = [None if request is None or request.busy else _follower(request) for request in requests]
        masks, left = self._grammars.masks(plan, followers, self._scheduler.pace.any)
        for index, (request, follower) in enumerate(zip(requests, followers, strict=True)):
            if request is None:
                continue
            if follower is None or index in left:
                self._set_aside(request)
            elif follower.cost.dear:
                self._book.hold(request.row)
        return masks

    def _set_aside(self, request: Request) -> None:
        """The step is under way, and there is no mask for this row: what it will say goes unheard, and it takes part
        again, from where it is, when it has one."""
        if not request.busy:
            self._take(request, _follower(request), [])
        self._book.preempt(request)

    def hand_over(self) -> None:
        """A step has come back: what held rows have said in it goes to the lane."""
        for request, tokens in self._book.take_unfollowed():
            if request.state is not State.DONE:
                self._take(request, _follower(request), tokens)

    def _take(self, request: Request, follower: Follower, tokens: list[int]) -> None:
        request.busy = True
        work = Work(request, lambda: self._grammars.follow(follower, tokens), follower.clock)
        self.lane.take(work, follower.cost.mean)

    def arrived(self, work: Work[Request]) -> None:
        """A piece of work is done, or never will be."""
        request = work.key
        if request.state is State.DONE:
            return
        request.busy = False
        if work.fault is not None:
            self._book.fail(request, work.fault)
            return
        follower = _follower(request)
        follower.ready = work.line
        follower.cost.took(work.seconds)
        if request.state is State.BLOCKED:
            self._book.queue.push(request)
        else:
            self._book.release(request.row)

    def expire(self) -> None:
        """End a request whose mask takes too long."""
        if self.lane.busy and (work := self.lane.late(time.monotonic())) is not None:
            self.arrived(work)

    def close(self) -> None:
        self.lane.close()


def _follower(request: Request) -> Follower:
    """The grammar of a request that has one."""
    assert isinstance(request.grammar, Follower)
    return request.grammar
