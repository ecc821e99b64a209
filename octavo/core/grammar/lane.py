"""Lane: a thread in which followers move on, and masks are made, that would hold up the step loop.

What takes time there is done without the interpreter's lock, by whoever stands back (``Grammar.fill_aside``). The
thread itself does not: it would hold that lock, now and then, while the machine has no time for it, and the loop would
wait.
"""

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from octavo.common.log import logger
from octavo.wire.arrays import Ints

T = TypeVar("T")
log = logger(__name__)

#: Seconds that one piece of work may take, however little of a processor it gets; by its limits none takes a second.
DEADLINE = 30.0
#: A piece of work lets those overtake it that come within so many times as long as it may take: a dear mask waits for
#: some dear ones, not for ever, and one that is not so dear waits for few.
YIELDS = 20
#: Seconds that ``close`` waits for the work in hand.
CLOSE = 2.0


class Work(Generic[T]):
    """Of the request ``key``: ``run`` gives what ``line`` then is, or says by ``fault`` why there is none. It took
    ``seconds`` by ``clock``, which is asked in the lane's thread."""

    __slots__ = ("begun", "clock", "fault", "key", "line", "run", "seconds")

    def __init__(self, key: T, run: Callable[[], Ints | str], clock: Callable[[], float] = time.thread_time):
        self.key = key
        self.run = run
        self.clock = clock
        self.line: Ints | None = None
        self.fault: str | None = None
        self.seconds = 0.0
        self.begun: float | None = None

    def do(self) -> None:
        try:
            begin = self.clock()
            said = self.run()
            self.seconds = self.clock() - begin
        except BaseException as error:  # a panic of a library is no Exception; a thread has nobody to tell
            log.exception("a grammar could not be followed")
            said = f"the grammar could not be followed: {type(error).__name__}: {error}"
        if isinstance(said, str):
            self.fault = said
        else:
            self.line = said


class Lane(Generic[T]):
    """Does work, one piece at a time. ``done`` is called with each piece, in the lane's thread, unless it was ``late``
    before, or its request is ``gone``. ``take``, ``late`` and ``close`` are the loop's.

    A thread that does not come back is left alone, and another does the rest.
    """

    def __init__(
        self,
        done: Callable[[Work[T]], None],
        gone: Callable[[T], bool] = lambda key: False,
        deadline: float = DEADLINE,
    ):
        self._done = done
        self._gone = gone
        self._deadline = deadline
        self._waiting: list[tuple[float, int, Work[T]]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        #: The thread whose work counts, and what it has in hand.
        self._thread: threading.Thread | None = None
        self._hand: Work[T] | None = None
        self._closed = False

    def take(self, work: Work[T], expected: float) -> None:
        """Do ``work``, which may take ``expected`` seconds."""
        with self._changed:
            heapq.heappush(self._waiting, (time.monotonic() + YIELDS * expected, next(self._numbers), work))
            self._changed.notify()
        self._start()

    def _start(self) -> None:
        """See that there is a thread; where the system has none, nothing can be done."""
        if self._closed or (self._thread is not None and self._thread.is_alive()):
            return
        thread = threading.Thread(target=self._serve, name="octavo-grammar-masks", daemon=True)
        self._thread = thread
        try:
            thread.start()
        except RuntimeError as error:
            self._thread = None
            for work in self._given_up():
                work.fault = f"the grammar could not be followed: {error}"
                self._done(work)

    def _given_up(self) -> Sequence[Work[T]]:
        with self._changed:
            waiting, self._waiting = self._waiting, []
        return [work for _, _, work in waiting]

    def _serve(self) -> None:
        me = threading.current_thread()
        while True:
            with self._changed:
                while not self._waiting and not self._closed and self._thread is me:
                    self._changed.wait()
                if self._closed or self._thread is not me:
                    return
                _, _, work = heapq.heappop(self._waiting)
                work.begun = time.monotonic()
                self._hand = work
            if not self._gone(work.key):
                work.do()
            with self._changed:
                if self._thread is not me:
                    return
                self._hand = None
            if not self._gone(work.key):
                self._done(work)
            del work  # who waits keeps no request

    @property
    def busy(self) -> bool:
        """Whether there is work in hand."""
        return self._hand is not None

    def next_deadline(self) -> float | None:
        """When the work in hand is late, on the monotonic clock; None where there is nothing to do."""
        hand = self._hand
        if hand is not None and hand.begun is not None:
            return hand.begun + self._deadline
        return time.monotonic() + self._deadline if self._waiting else None

    def late(self, now: float) -> Work[T] | None:
        """Work in hand that takes too long, or whose thread is dead: it is taken away, and nothing comes of it."""
        if (hand := self._hand) is None:
            return None
        with self._changed:
            thread, hand = self._thread, self._hand
            if hand is None or hand.begun is None or thread is None:
                return None
            if thread.is_alive() and now < hand.begun + self._deadline:
                return None
            self._thread = self._hand = None
            self._changed.notify_all()
            again = bool(self._waiting)
        hand.fault = (
            f"the grammar is too complex: what may come next was not known within {self._deadline:g} seconds"
            if thread.is_alive()
            else "the thread that followed the grammar has died"
        )
        log.error("%s", hand.fault)
        if again:
            self._start()
        return hand

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread.is_alive():
            thread.join(CLOSE)
