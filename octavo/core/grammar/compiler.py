"""The compiler of an engine: what was compiled before is kept, what is new is tried in another process first."""

import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

from octavo.common.log import logger
from octavo.common.proc import stand_back
from octavo.config.engine import GrammarSection
from octavo.core.grammar.base import DEFAULT, ENGINES, PARAM, Compiler, Engine, Grammar, NotQuick, Template
from octavo.core.grammar.cost import Cost
from octavo.core.grammar.trial import NICE, NoTime, Outlasted, TookTooLong, Trial, Verdict
from octavo.errors import BadRequest
from octavo.wire.request import GrammarRef
from octavo.wire.vocabulary import Vocabulary

log = logger(__name__)

#: Seconds of a processor that a common grammar takes at most; several times what large ones in use take.
COMMON = 0.5
#: Grammars that are kept, and characters of their texts together.
KEPT = 256
KEPT_TEXT = 16 << 20
Key: TypeAlias = tuple[str, str, str | None, bool]


class TriedCompiler(Compiler):
    """Tries what is new in another process, and keeps what was compiled. There are two such processes: one for all, the
    other for those that the first gave up on soon."""

    def __init__(self, section: GrammarSection, vocabulary: Vocabulary, width: int):
        self._backend = DEFAULT if section.backend == "auto" else section.backend
        self._vocabulary = vocabulary
        self._width = width
        self._trial = Trial(self._backend, vocabulary, width)
        self._first = Trial(self._backend, vocabulary, width, COMMON)
        self._engine: Engine | None = None
        self._kept: OrderedDict[Key, tuple[Template, Cost]] = OrderedDict()
        self._text = 0
        #: Those that were not compiled in time, and what was said of them: once is enough.
        self._slow: OrderedDict[Key, str] = OrderedDict()
        self._lock, self._making = threading.Lock(), threading.Lock()

    def kept(self, ref: GrammarRef) -> Grammar | None:
        with self._lock:
            found = self._kept.get(key := _key(ref))
            if found is None:
                return None
            if found[0].worn:
                del self._kept[key]
                self._text -= len(ref.text)
                return None
            self._kept.move_to_end(key)
        return found[0].open()

    def cost(self, ref: GrammarRef) -> Cost:
        with self._lock:
            found = self._kept.get(_key(ref))
        return Cost() if found is None else found[1]

    def compile(self, ref: GrammarRef) -> Grammar:
        if (grammar := self._known(ref)) is not None:
            return grammar
        try:
            tried = self._trial.check(ref)
        except TookTooLong as error:
            with self._lock:
                self._slow[_key(ref)] = error.message
                while len(self._slow) > KEPT:
                    self._slow.popitem(last=False)
            raise
        return self._build(ref, tried)

    def compile_quickly(self, ref: GrammarRef) -> Grammar:
        if (grammar := self._known(ref)) is not None:
            return grammar
        try:
            tried = self._first.check(ref)
        except (TookTooLong, Outlasted, NoTime):
            raise NotQuick from None
        return self._build(ref, tried)

    def _known(self, ref: GrammarRef) -> Grammar | None:
        """Raises ``BadRequest`` for one that is known to take too long."""
        if (grammar := self.kept(ref)) is not None:
            return grammar
        with self._lock:
            refusal = self._slow.get(_key(ref))
        if refusal is not None:
            raise BadRequest(refusal, PARAM)
        return None

    def _build(self, ref: GrammarRef, tried: Verdict) -> Grammar:
        # Only this thread stands back, which holds the interpreter's lock for moments alone: whoever starts a process
        # holds it until the process is there, and the loop would wait for its turn.
        with ThreadPoolExecutor(1, "octavo-grammar-build", stand_back, (NICE,)) as behind:
            template = behind.submit(self._ready().build, tried.text).result()
        key = _key(ref)
        with self._lock:
            if key not in self._kept:
                self._text += len(ref.text)
            self._kept[key] = template, Cost(tried.dearest, tried.mean, tried.told)
            while len(self._kept) > KEPT or (self._text > KEPT_TEXT and len(self._kept) > 1):
                (_, old, _, _), _ = self._kept.popitem(last=False)
                self._text -= len(old)
        return template.open()

    def warm(self) -> None:
        """Bind the engine to the vocabulary before the first grammar comes: it takes the interpreter's lock for tenths
        of a second, which costs the least while nobody waits."""
        try:
            self._ready()
        except Exception as error:  # told to the first request that brings a grammar
            log.warning("structured outputs are not ready: %s", error)

    def _ready(self) -> Engine:
        with self._making:
            if self._engine is None:
                self._engine = ENGINES.load(self._backend)(self._vocabulary, self._width)
            return self._engine

    def close(self) -> None:
        self._trial.close()
        self._first.close()


def _key(ref: GrammarRef) -> Key:
    return ref.kind, ref.text, ref.whitespace, ref.closed
