"""What the front's tests share: a tokenizer, a configuration, a ready engine that is none."""

import functools
import tempfile
from typing import Any

from octavo.config.engine import EngineConfig, ModelSection, ScheduleSection, TextSection
from octavo.config.facts import ModelFacts
from octavo.front.tokenizers.base import Tokenizer, load
from octavo.testing import tokenizer as tiny
from octavo.wire.hello import Limits, Ready

VOCAB = 320


@functools.cache
def small() -> Tokenizer:
    """The tiny byte-level tokenizer, read from a directory as any other."""
    with tempfile.TemporaryDirectory() as folder:
        return load(tiny.write(folder, size=VOCAB))


def config(policy: str = "fcfs", **text: Any) -> EngineConfig:
    facts = ModelFacts(
        architecture="Fake",
        vocab=VOCAB,
        hidden=8,
        layers=1,
        q_heads=1,
        kv_heads=1,
        head_dim=8,
        ffn=8,
        max_positions=64,
        eos=(1,),
        raw={"fake": {"vocab": VOCAB}},
    )
    return EngineConfig(
        model=ModelSection(path="fake", facts=facts, dtype="float32"),
        text=TextSection(tokenizer="fake", served_names=("fake",), **text),
        schedule=ScheduleSection(policy=policy),
        worker="octavo.testing.fakes:FakeWorker",
    )


def ready(length: int = 64, limits: Limits | None = None) -> Ready:
    return Ready(length, VOCAB, 4, 64, 256, limits or Limits())
