"""Grammars: compiles off the loop, fills masks for a plan, follows the tokens that requests say."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import numpy as np

from octavo.common.log import logger
from octavo.common.math import cdiv
from octavo.core.grammar.base import Compiler, Grammar
from octavo.errors import RequestError
from octavo.wire.plan import GrammarMasks, StepPlan
from octavo.wire.request import GrammarRef

T = TypeVar("T")
log = logger(__name__)


class Follower:
    """One request's grammar. It bites only behind the token ids ``after`` (the end of reasoning), if there are any.

    What a grammar engine raises ends its own request, by the next ``accept``, and nobody else's.
    """

    def __init__(self, grammar: Grammar, after: tuple[int, ...]):
        self._grammar = grammar
        self._after = after
        self._seen: list[int] = []
        self._broken = False

    def accept(self, token: int) -> bool:
        """Follow a token that was said. False: it breaks the grammar."""
        if self._broken:
            return False
        if not self._after:
            try:
                return self._grammar.accept(token)
            except Exception:
                log.exception("a grammar could not follow token %d", token)
                return False
        self._seen = [*self._seen, token][-len(self._after) :]
        if tuple(self._seen) == self._after:
            self._after = ()
        return True

    def fill(self, bits: np.ndarray) -> None:
        if self._after:
            bits[:] = -1
            return
        try:
            self._grammar.fill(bits)
        except Exception:
            log.exception("a grammar could not say what may come next")
            self._broken = True
            bits[:] = -1


class Grammars(Generic[T]):
    """``compiler``: None where no engine is installed; then requests with a grammar are refused. ``notify`` is called
    with (key, Follower or the error) from a thread as soon as a grammar is compiled."""

    def __init__(self, compiler: Compiler | None, vocab: int, notify: Callable[[T, Follower | RequestError], None]):
        self.compiler = compiler
        self._words = cdiv(vocab, 32)
        self._notify = notify
        self._pool: ThreadPoolExecutor | None = None

    def start(self, key: T, ref: GrammarRef) -> None:
        """Compile for the request ``key``."""
        assert self.compiler is not None
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "octavo-grammar")

        def done(future: Future) -> None:
            error = future.exception()
            if error is None:
                self._notify(key, Follower(future.result(), ref.after))
            elif isinstance(error, RequestError):
                self._notify(key, error)
            else:
                self._notify(key, RequestError(f"the grammar could not be compiled: {error}", "grammar"))

        self._pool.submit(self.compiler.compile, ref).add_done_callback(done)

    def masks(self, plan: StepPlan, followers: Sequence[Follower | None]) -> GrammarMasks | None:
        """Masks for ``plan.masked``, whose followers these are; None (the request has just ended) allows everything."""
        if not len(plan.masked):
            return None
        bits = np.zeros((len(plan.masked), self._words), np.int32)
        for line, follower in zip(bits, followers, strict=True):
            if follower is None:
                line[:] = -1
            else:
                follower.fill(line)
        return GrammarMasks(plan.masked, bits)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
