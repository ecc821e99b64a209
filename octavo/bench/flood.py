"""`octavo bench grammar --flood`: what a flood of hostile grammars costs a request beside it that has none.

The core is the real one, the device a fake with a fixed step that says what masks allow. The neighbour streams; what is
told are the gaps between its tokens, first alone, then from the flood's arrival until the last of it is answered; and
what the loop computes from one step to the next, which no other process of the machine can change.
"""

import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from octavo.bench import report
from octavo.config.engine import CacheSection, EngineConfig, GrammarSection, ModelSection, ScheduleSection, TextSection
from octavo.config.facts import ModelFacts
from octavo.core.engine.core import EngineCore
from octavo.core.engine.process import SWITCH
from octavo.errors import OctavoError
from octavo.wire.arrays import ints
from octavo.wire.reply import Admitted, FinishReason
from octavo.wire.request import EngineRequest, GrammarRef, Sampling
from octavo.wire.vocabulary import Vocabulary

COLUMNS = [
    "workload", "gaps", "gap_ms_p50", "gap_ms_p99", "gap_ms_max", "loop_ms_p99", "loop_ms_max", "sent", "refused",
    "failed", "answered", "s",
]  # fmt: skip
_LONGEST, _PAGE = 1 << 16, 64
#: Tokens of an answer under a hostile grammar that was let in.
_SAID = 16
#: Seconds alone, and seconds that one hostile grammar may take to be answered.
_ALONE, _EACH = 3.0, 40.0


def hostile(count: int) -> Iterator[GrammarRef]:
    """Grammars of every kind that costs: all different, so that none is known before."""
    kinds: Sequence[Callable[[int], GrammarRef]] = (
        lambda i: GrammarRef("regex", f".*a.{{14}}b.*c.{{14}}d{i}"),  # dear masks
        lambda i: GrammarRef("regex", "a?" * (100_000 + i)),  # minutes
        lambda i: GrammarRef("json_schema", json.dumps({"enum": [f"{i} {n * 7919 % 100_003}" for n in range(9000)]})),
        lambda i: GrammarRef(  # deeper than a stack
            "grammar", "start: a0\n" + "\n".join(f"a{n}: a{n + 1} a{n + 1}" for n in range(5000)) + f'\na5000: "{i}"'
        ),
        lambda i: GrammarRef(
            "json_schema",
            json.dumps(
                {
                    "type": "object",
                    "properties": {f"p{n}": {"pattern": f"^[a-z]{{1,{50 + n}}}(x|y){{0,40}}{i}$"} for n in range(300)},
                }
            ),
        ),
        lambda i: GrammarRef("choice", json.dumps([f"{i} {n * 7919 % 100_003}" for n in range(20_000)])),
        lambda i: GrammarRef("regex", f"(({i}"),  # none at all
        lambda i: GrammarRef(  # masks that are the dearer the longer the answer
            "lark", f'start: e\ne: "{i}" | e e e | e e | /./ | /../ | /.../ | /.{{4}}/ | /.{{5}}/ | /.{{1,20}}/'
        ),
    )
    for index in range(count):
        yield kinds[index % len(kinds)](index)


class _Neighbour:
    """A core with one stream in it, and what the others were answered."""

    def __init__(self, vocabulary: Vocabulary, width: int, step: float, backend: str, said: int):
        self._said = said
        fake = {"vocab": width, "strict": False, "page_sizes": (_PAGE,), "latency": step}
        facts = ModelFacts(
            architecture="Fake", vocab=width, hidden=8, layers=1, q_heads=1, kv_heads=1, head_dim=8, ffn=8,
            max_positions=_LONGEST, raw={"fake": fake},
        )  # fmt: skip
        config = EngineConfig(
            model=ModelSection(path="fake", facts=facts, dtype="float32"),
            text=TextSection(tokenizer="", served_names=("fake",)),
            cache=CacheSection(page=_PAGE, memory=4 * _LONGEST * 4),
            schedule=ScheduleSection(max_num_seqs=32, depth=2, max_model_len=_LONGEST),
            grammar=GrammarSection(backend=backend),
            worker="octavo.testing.obedient:Obedient",
        )
        self.core = EngineCore(config)
        self.core.start()
        self.core.teach(vocabulary)
        self.ends = vocabulary.eos
        self.told: dict[int, str] = {}
        self.gaps: list[float] = []
        #: Seconds of a processor that turns of the loop took.
        self.turns: list[float] = []
        self._last = 0.0
        self.ask(0, None)

    def ask(self, handle: int, grammar: GrammarRef | None) -> None:
        limit = _LONGEST if grammar is None else 4 + self._said
        stops = () if grammar is None else self.ends
        wire = EngineRequest(
            handle, ints([5, 6, 7, 8]).tobytes(), Sampling(handle), limit, stops=stops, eos=len(stops), grammar=grammar
        )
        self.core.add([wire])

    def run(self, until: Callable[[], bool]) -> None:
        """Steps until ``until`` says so."""
        while not until():
            begin = time.thread_time()
            replies = self.core.poll(0.0)
            self.turns.append(time.thread_time() - begin)
            for reply in replies:
                for answer in reply.answers:
                    if not isinstance(answer, Admitted):
                        self.told[answer.handle] = "refused"
                for delta in reply.deltas:
                    if delta.finish is not None:
                        self.told[delta.handle] = "failed" if delta.finish is FinishReason.ERROR else "answered"
                if (reply.handles == 0).any():
                    now = time.perf_counter()
                    self.gaps.append(now - self._last)
                    self._last = now
            if 0 in self.told:
                raise OctavoError("the neighbour's answer ended")

    def measured(self, until: Callable[[], bool]) -> dict[str, Any]:
        self.gaps.clear()
        self.turns.clear()
        begin = time.perf_counter()
        self.run(until)
        self.gaps[:1] = []  # it began before
        return {
            "gaps": len(self.gaps),
            **{f"gap_ms_p{q}": round(report.percentile(self.gaps, q) * 1e3, 3) for q in (50, 99)},
            "gap_ms_max": round(max(self.gaps, default=0.0) * 1e3, 3),
            "loop_ms_p99": round(report.percentile(self.turns, 99) * 1e3, 3),
            "loop_ms_max": round(max(self.turns, default=0.0) * 1e3, 3),
            "s": round(time.perf_counter() - begin, 1),
        }


def flood(
    vocabulary: Vocabulary, width: int, count: int, step: float, backend: str, said: int | None = None
) -> list[dict[str, Any]]:
    """Two records: the neighbour alone, and with ``count`` hostile grammars that say at most ``said`` tokens each, at
    ``step`` seconds a step."""
    said = _SAID if said is None else said
    house = _Neighbour(vocabulary, width, step, backend, said)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH)  # as the engine's process has it, which collects no garbage either
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        # The engine of grammars is made, and its process runs, before anything counts.
        house.ask(1, GrammarRef("choice", '["a"]'))
        house.run(lambda: 1 in house.told)
        until = time.monotonic() + _ALONE
        alone = house.measured(lambda: time.monotonic() >= until)
        for handle, ref in enumerate(hostile(count), 2):
            house.ask(handle, ref)
        until = time.monotonic() + _EACH * count
        beside = house.measured(lambda: len(house.told) == count + 1 or time.monotonic() >= until)
        outcomes = Counter(told for handle, told in house.told.items() if handle > 1)
    finally:
        sys.setswitchinterval(interval)
        gc.enable()
        gc.unfreeze()
        house.core.close()
    values = {"sent": count, "said": said, **{name: outcomes[name] for name in ("refused", "failed", "answered")}}
    return [
        report.record(workload=name, impl="octavo", model="a fake device", step_ms=step * 1e3, **found)
        for name, found in (("neighbour alone", alone), (f"neighbour of {count} hostile", beside | values))
    ]
