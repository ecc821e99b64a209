"""Grammars: compiles off the loop, fills masks for a plan, follows the tokens that requests say."""

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

import numpy as np

from octavo.common.log import logger
from octavo.common.math import cdiv
from octavo.config.engine import GrammarSection
from octavo.core.grammar.base import PARAM, Compiler, Grammar, NotQuick, PassedLimits, allow, allows
from octavo.core.grammar.compiler import TriedCompiler
from octavo.core.grammar.cost import USUAL, Cost, budget, share
from octavo.core.grammar.reasoning import FREE, Free, Reasoning
from octavo.errors import RequestError
from octavo.wire.arrays import Ints
from octavo.wire.plan import GrammarMasks, StepPlan
from octavo.wire.request import GrammarRef
from octavo.wire.result import TOO_COMPLEX
from octavo.wire.vocabulary import Vocabulary

T = TypeVar("T")
log = logger(__name__)


class NotCompiled(RequestError):
    """A grammar that may be right and could not be compiled all the same."""

    status = 500


class Follower:
    """One request's grammar, and the reasoning before it, which the grammar does not rule.

    ``eos`` are the ids that the grammar itself allows where it is complete; the request's other ``stops`` are allowed
    there too. What a grammar engine raises ends its own request, by the next ``accept``, and nobody else's.

    ``cost`` says whether the loop may call it; a dear one is followed elsewhere (``follow``), and then nobody else
    calls it. ``ready``: the mask of the next token, where it is known already.
    """

    def __init__(
        self,
        grammar: Grammar,
        reasoning: Reasoning,
        stops: tuple[int, ...] = (),
        eos: tuple[int, ...] = (),
        cost: Cost | None = None,
    ):
        self._grammar = grammar
        self._reasoning = reasoning
        self.cost = Cost() if cost is None else cost
        self.ready: Ints | None = None
        self._eos = eos
        self._stops = tuple(token for token in stops if token not in eos)
        #: Of the ``eos`` those that end the request: it may have been asked to ignore them.
        self._ends = tuple(token for token in eos if token in stops)
        self._broken = False
        #: What went wrong, once something has.
        self._why = ""

    @property
    def dear(self) -> bool:
        return self.cost.dear

    def clock(self) -> float:
        """Seconds of a processor that ``follow`` has taken in this thread, and other work of it."""
        return self._grammar.clock_aside()

    def accept(self, token: int) -> bool:
        """Follow a token that was said. False: it breaks the grammar."""
        self.ready = None
        return self._accept(token)

    def follow(self, tokens: Sequence[int], words: int) -> Ints | str:
        """Follow tokens that were said: the mask of the next one, of so many words, or what is wrong with them."""
        for token in tokens:
            ready, self.ready = self.ready, None
            if not self._accept(token, known=ready is not None and allows(ready, token) and token not in self._stops):
                return self.complaint(token)
        bits: Ints = np.zeros(words, np.int32)
        self.fill(bits, aside=True)
        return bits

    def complaint(self, token: int) -> str:
        """What a request that ``accept`` refused a token of is told."""
        return self._why or f"token {token} breaks the grammar of this request"

    def _trouble(self, what: str, error: BaseException) -> None:
        """Note, and log, that the grammar ``could not`` do something. A client's grammar that passes limits is no fault
        of the server, and needs no more than a line."""
        _pass_on(error)
        self._broken = True
        if isinstance(error, PassedLimits):
            self._why = f"{TOO_COMPLEX}: {error}"
            log.info("a grammar %s: %s", what, error)
        else:
            log.error("a grammar %s", what, exc_info=error)

    def _accept(self, token: int, known: bool = False) -> bool:
        """``known``: this is not the loop's thread, and the mask allowed the token."""
        if self._broken:
            return False
        if self._reasoning.accept(token):
            return True
        try:
            return self._grammar.accept_aside(token) if known else self._grammar.accept(token)
        except BaseException as error:
            self._trouble(f"could not follow token {token}", error)
            return False

    def fill(self, bits: np.ndarray, aside: bool = False) -> None:
        """What may come next; ``bits`` is zeroed. ``aside``: this is not the loop's thread."""
        reasoning = self._reasoning
        if reasoning.stage.open:
            if forced := reasoning.forced():
                allow(bits, forced[:1])
            else:
                bits[:] = -1
            return
        try:
            if aside:
                self._grammar.fill_aside(bits)
            else:
                self._grammar.fill(bits)
        except BaseException as error:
            self._trouble("could not say what may come next", error)
            bits[:] = -1
            return
        if self._stops and any(allows(bits, token) for token in self._eos):
            allow(bits, self._stops)
        if reasoning.stage.open is None:
            allow(bits, reasoning.opens)

    def drafts(self, limit: int) -> list[int]:
        """At most ``limit`` tokens that the grammar leaves no choice about; guesses only where text could be cut in
        another way."""
        reasoning = self._reasoning
        if self._broken or limit < 1 or reasoning.stage.open is None:
            return []
        if reasoning.stage.open:
            return list(reasoning.forced()[:limit])
        if not self.cost.guesses:
            return []
        try:
            return self._grammar.forced(limit)
        except BaseException as error:
            self._trouble("could not say what it forces", error)
            return []

    def fill_window(self, bits: np.ndarray, drafts: Sequence[int]) -> None:
        """What may come at each position of a window: ``bits`` is int32 [len(drafts) + 1, W], zeroed; line i is for the
        token behind ``drafts[:i]``. A draft that the grammar refuses, or an end, ends the window: lines behind it allow
        everything, since nobody will draw from them. The follower stays where it is."""
        stage, accepted = self._reasoning.stage, 0
        last = len(drafts)
        for i, line in enumerate(bits):
            if i == 0 and self.ready is not None:
                line[:] = self.ready
            else:
                self.fill(line)
            if i == last:
                break
            ruled = not self._reasoning.takes(drafts[i])
            over = ruled and drafts[i] in self._ends
            if self._broken or over or not allows(line, drafts[i]) or not self._accept(drafts[i]):
                bits[i + 1 :] = -1
                break
            accepted += ruled
        self._reasoning.stage = stage
        if accepted:
            try:
                self._grammar.rollback(accepted)
            except BaseException as error:
                self._trouble("could not take tokens back", error)


class Grammars(Generic[T]):
    """``compiler``: None until a vocabulary is taught; requests with a grammar are refused as long. ``vocab``: width of
    the logits. ``notify`` is called with (key, Follower or the error), also from a thread, as soon as a grammar is
    compiled. ``gone``: whether a key's request is over, so that nothing need be compiled for it; any thread asks.

    They are compiled one at a time, short texts first: long ones take long, however many of them somebody sends. Those
    that turn out to take long make room, and are compiled in another thread, one at a time too."""

    def __init__(
        self,
        compiler: Compiler | None,
        vocab: int,
        notify: Callable[[T, Follower | RequestError], None],
        gone: Callable[[T], bool] = lambda key: False,
    ):
        self.compiler = compiler
        self._vocab = vocab
        self._words = cdiv(vocab, 32)
        self._notify = notify
        self._gone = gone
        self._eos: tuple[int, ...] = ()
        self._pool: ThreadPoolExecutor | None = None
        self._patient: ThreadPoolExecutor | None = None
        self._numbers = itertools.count()
        #: (length of the text, number, key, grammar, stops), a heap.
        self._waiting: list[tuple[int, int, T, GrammarRef, tuple[int, ...]]] = []
        self._lock = threading.Lock()
        self._closed = False

    def teach(self, section: GrammarSection, vocabulary: Vocabulary) -> None:
        """From now on grammars are compiled, for this vocabulary. A compiler that is there already stays."""
        if self.compiler is None:
            self.compiler = compiler = TriedCompiler(section, vocabulary, self._vocab)
            self._eos = vocabulary.eos
            self._threads().submit(compiler.warm)

    def start(self, key: T, ref: GrammarRef, stops: tuple[int, ...] = ()) -> None:
        """Compile for the request ``key``, which may end its answer with ``stops``."""

        if ref.kind == FREE:
            self._follow(key, Free(), ref, stops)
            return
        compiler = self.compiler
        assert compiler is not None
        if (kept := compiler.kept(ref)) is not None:
            self._follow(key, kept, ref, stops)
            return
        with self._lock:
            heapq.heappush(self._waiting, (len(ref.text), next(self._numbers), key, ref, stops))
        self._threads().submit(self._compile_next)

    def _follow(self, key: T, grammar: Grammar, ref: GrammarRef, stops: tuple[int, ...]) -> None:
        cost = self.compiler.cost(ref) if self.compiler is not None else Cost()
        self._notify(key, Follower(grammar, Reasoning(ref), stops, self._eos, cost))

    def _compile_next(self) -> None:
        with self._lock:
            _, _, key, ref, stops = heapq.heappop(self._waiting)
        if self._gone(key):
            return
        assert self.compiler is not None
        try:
            grammar = self.compiler.compile_quickly(ref)
        except NotQuick:
            self._slow_ones().submit(self._compile_slowly, key, ref, stops)
        except BaseException as error:
            self._refuse(key, error)
        else:
            self._follow(key, grammar, ref, stops)

    def _compile_slowly(self, key: T, ref: GrammarRef, stops: tuple[int, ...]) -> None:
        if self._gone(key):
            return
        assert self.compiler is not None
        try:
            grammar = self.compiler.compile(ref)
        except BaseException as error:
            self._refuse(key, error)
        else:
            self._follow(key, grammar, ref, stops)

    def _refuse(self, key: T, error: BaseException) -> None:
        if not isinstance(error, RequestError):  # a panic of the library is no Exception
            error = NotCompiled(f"the grammar could not be compiled: {error}", PARAM)
        self._notify(key, error)

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "octavo-grammar")
        return self._pool

    def _slow_ones(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._closed:
                raise RuntimeError("the engine is closing")
            if self._patient is None:
                self._patient = ThreadPoolExecutor(1, "octavo-grammar")
            return self._patient

    def masks(
        self, plan: StepPlan, followers: Sequence[Follower | None], step: float = 0.0
    ) -> tuple[GrammarMasks, set[int]]:
        """Masks for ``plan.masked``, whose followers these are; None (the request has just ended) allows everything.
        ``step``: seconds that one takes, 0 where that is not known. What each mask takes is told to its ``cost``; one
        that turns out to be dear keeps its mask, so that it is not made again. Also the indexes of followers that got
        no mask, but lines that allow everything: they are dear, or the step has spent what it may on masks."""
        drafts = _drafts(plan) if len(plan.draft_tokens) else [[]] * len(plan.masked)
        bits = np.zeros((len(drafts) + sum(map(len, drafts)), self._words), np.int32)
        left: set[int] = set()
        # Who makes many masks at once for drafts makes fewer later, so that each of a window's has its time.
        at, allowed, most = 0, budget(len(bits), step), share(len(followers), step)
        # A clock of the thread costs more than most masks do, so it is asked only about what seems to take long.
        spent, counted = time.thread_time(), 0.0
        first = now = time.perf_counter()
        for index, (some, follower) in enumerate(zip(drafts, followers, strict=True)):
            start, at = at, at + 1 + len(some)
            if follower is None:
                bits[start:at] = -1
                continue
            cost, ready = follower.cost, follower.ready
            if ready is None and (cost.dear or (now - first > allowed and time.thread_time() - spent > allowed)):
                bits[start:at] = -1
                left.add(index)
                continue
            if some:
                follower.fill_window(bits[start:at], some)
            elif ready is None:
                follower.fill(bits[start])
            else:
                bits[start] = ready
                continue
            begin, now = now, time.perf_counter()
            took = now - begin
            if took > USUAL:
                took = min(took, time.thread_time() - spent - counted)
            counted += took
            cost.took(took / (1 + len(some)), most)
            if cost.dear and ready is None:
                follower.ready = bits[start].copy()
        return GrammarMasks(plan.masked, bits), left

    def follow(self, follower: Follower, tokens: Sequence[int]) -> Ints | str:
        """``Follower.follow``, for masks as wide as this model's."""
        return follower.follow(tokens, self._words)

    def close(self) -> None:
        if self.compiler is not None:
            self.compiler.close()
        with self._lock:
            self._closed = True
        for pool in (self._pool, self._patient):
            if pool is not None:
                pool.shutdown(wait=False, cancel_futures=True)


def _pass_on(error: BaseException) -> None:
    """Raise what is no grammar engine's fault; a panic of one is no ``Exception``."""
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        raise error


def _drafts(plan: StepPlan) -> list[list[int]]:
    """Of each of ``plan.masked``."""
    ends = np.cumsum(plan.drafts)
    return [
        plan.draft_tokens[stop - count : stop].tolist()
        for stop, count in zip(ends[plan.masked].tolist(), plan.drafts[plan.masked].tolist(), strict=True)
    ]
