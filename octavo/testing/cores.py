"""What tests of an engine core share: its configuration over a ``FakeWorker``, and what a client hears of it."""

import random
from dataclasses import dataclass, field
from typing import Any

from octavo.config.engine import CacheSection, EngineConfig, ModelSection, ScheduleSection, TextSection
from octavo.config.facts import ModelFacts
from octavo.core.scheduler.burst import Pace
from octavo.wire.result import LogprobArrays


class Drawn(Pace):
    """Bursts of up to ``most`` steps, as a generator of random numbers wants them: no clock has a say."""

    def __init__(self, most: int, seed: int = 0):
        super().__init__(0.0)
        self._most = most
        self._draw = random.Random(seed)

    def fit(self, now: float) -> int:
        return self._draw.randint(1, self._most)


@dataclass
class Told:
    """One request's answer as a client hears it."""

    tokens: list[int] = field(default_factory=list)
    admitted: bool = False
    refused: Any = None
    finish: Any = None
    stop: int | None = None
    error: str | None = None
    cached: int | None = None
    first: float | None = None
    logprobs: list[LogprobArrays] = field(default_factory=list)
    prompt_logprobs: list[LogprobArrays] = field(default_factory=list)


def hear(replies, told: dict[int, Told]) -> None:
    """Read replies as a client must: answers, then tokens, then deltas."""
    for reply in replies:
        for answer in reply.answers:
            one = told.setdefault(answer.handle, Told())
            if type(answer).__name__ == "Admitted":
                one.admitted = True
            else:
                one.refused = answer
        at = 0
        for handle, count in zip(reply.handles.tolist(), reply.counts.tolist(), strict=True):
            one = told.setdefault(handle, Told())
            assert one.finish is None, "tokens after the end"
            one.tokens += reply.tokens[at : at + count].tolist()
            at += count
        assert at == len(reply.tokens)
        for delta in reply.deltas:
            one = told.setdefault(delta.handle, Told())
            assert one.finish is None, "words after the end"
            one.finish, one.stop, one.error = delta.finish, delta.stop, delta.error
            one.cached = delta.cached if delta.cached is not None else one.cached
            assert one.first is None or delta.first is None, "the first token came twice"
            one.first = one.first or delta.first
            if delta.logprobs is not None:
                one.logprobs.append(delta.logprobs)
            one.prompt_logprobs += delta.prompt_logprobs or []


def fake_config(fake: dict | None = None, **schedule: Any) -> EngineConfig:
    """A configuration for a core on this worker, with no model behind it. Keywords are of ``ScheduleSection``."""
    cache = CacheSection(**{key: schedule.pop(key) for key in ("page", "memory", "prefix_caching") if key in schedule})
    facts = ModelFacts(
        architecture="Fake",
        vocab=97,
        hidden=8,
        layers=1,
        q_heads=1,
        kv_heads=1,
        head_dim=8,
        ffn=8,
        max_positions=256,
        raw={"fake": fake or {}},
    )
    return EngineConfig(
        model=ModelSection(path="fake", facts=facts, dtype="float32"),
        text=TextSection(tokenizer="", served_names=("fake",)),
        cache=cache,
        schedule=ScheduleSection(**schedule),
        worker="octavo.testing.fakes:FakeWorker",
    )
