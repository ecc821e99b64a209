"""A vocabulary of the 256 bytes, and questions to a grammar compiled for it."""

import itertools
import json
import random
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from octavo.core.grammar.base import Grammar, allows
from octavo.core.grammar.guidance import Guidance
from octavo.errors import BadRequest
from octavo.testing.served import PATIENCE
from octavo.wire.request import GrammarRef
from octavo.wire.vocabulary import Vocabulary

EOS = 256
BYTES = Vocabulary(257, (*(bytes([byte]) for byte in range(256)), b"<eos>"), (EOS,), (EOS,))


@lru_cache(1)
def engine() -> Guidance:
    return Guidance(BYTES, 257)


def opened(kind: str, text: Any, **more: Any) -> Grammar:
    text = text if isinstance(text, str) else json.dumps(text)
    return engine().build(engine().prepare(GrammarRef(kind, text, **more))).open()


def told_late(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """Whatever an engine is asked takes longer than it may, by the engine's own clock."""
    ticks = itertools.count(0.0, 2 * PATIENCE)
    monkeypatch.setattr(f"octavo.core.grammar.{module}.time", SimpleNamespace(thread_time=lambda: next(ticks)))


def schema(value: Any, **more: Any) -> Grammar:
    return opened("json_schema", value, **more)


def mask(grammar: Grammar) -> np.ndarray:
    bits = np.zeros(9, np.int32)
    grammar.fill(bits)
    return bits


def ids(bits: np.ndarray) -> list[int]:
    return [token for token in range(257) if allows(bits, token)]


def says(grammar: Grammar, text: str | bytes) -> bool:
    """Whether the whole of ``text`` is an answer; the grammar is where it was afterwards."""
    data = text.encode() if isinstance(text, str) else text
    done = 0
    for byte in data:
        if not grammar.accept(byte):
            break
        done += 1
    whole = done == len(data) and allows(mask(grammar), EOS)
    grammar.rollback(done)
    return whole


def sample(grammar: Grammar, rng: random.Random, most: int = 400) -> str | None:
    """A random answer, of the shorter ones; None where it did not end."""
    said = bytearray()
    while len(said) < most:
        may = ids(mask(grammar))
        if EOS in may and (len(may) == 1 or rng.random() < 0.5):
            return said.decode()
        may = [token for token in may if token != EOS]
        ends = [token for token in may if token in b'"}]']
        plain = [token for token in may if token in b'abc019.-,:{}[]"tfnulrse']
        token = rng.choice(ends if ends and rng.random() < 0.3 else plain or may)
        assert grammar.accept(token)
        said.append(token)
    return None


def refusal(value: Any) -> str | None:
    """Why a JSON schema is refused; None where it is not."""
    try:
        schema(value)
    except BadRequest as error:
        return error.message
    return None
