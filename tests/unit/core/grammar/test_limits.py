"""What passes the library's limits: an answer ends by its own text alone, and its sender is told so."""

import json
import random

import numpy as np
import pytest
from llguidance import LLParserLimits

from octavo.core.grammar import guidance
from octavo.core.grammar.base import PassedLimits
from octavo.core.grammar.guidance import Guidance
from octavo.core.grammar.manager import Follower
from octavo.core.grammar.reasoning import Reasoning
from octavo.wire.request import GrammarRef
from octavo.wire.vocabulary import Vocabulary
from tests.unit.core.grammar.support import EOS, ids, mask, opened
from tests.unit.core.grammar.test_kinds import VOCABULARY, WORDS


def test_forced_text_beyond_the_librarys_limits_breaks_nothing():
    """Asked for what is forced, the library goes over all of it at once, and may pass its limits on the way."""
    one, other = opened("regex", "(ab){10000}c"), opened("regex", "(ab){10000}c")
    for token in b"ab" * 40:
        other.forced(8)
        assert ids(mask(one)) == ids(mask(other)) == [token]
        assert one.accept(token)
        assert other.accept(token)
    other.rollback(3)
    assert ids(mask(other)) == [98]


def limited(monkeypatch, states: int) -> Guidance:
    """An engine whose lexers may have so many states."""
    limits = {"initial_lexer_fuel": 1_000_000, "step_lexer_fuel": 50_000, "verbose_errors": False}
    monkeypatch.setattr(guidance, "LIMITS", LLParserLimits(max_lexer_states=states, **limits))
    return Guidance(VOCABULARY, 300)


def test_a_grammar_that_many_have_answered_by_is_not_worn_out(monkeypatch):
    """All answers have one lexer, which learns from each of them up to a limit; that is nobody's fault."""
    engine = limited(monkeypatch, 160)
    template = engine.build(engine.prepare(GrammarRef("regex", "(?i)([a-z0-9]{1,20}[-_ ]{1,3}){1,40}")))
    made, fresh = [], engine.matcher
    monkeypatch.setattr(engine, "matcher", lambda text: made.append(text) or fresh(text))
    draw = random.Random(1)
    together = []
    for _ in range(60):
        together = [template.open(), *together[:3]]
        for answer in together:
            for _ in range(8):
                bits, aside = mask(answer), np.zeros(WORDS, np.int32)
                answer.fill_aside(aside)
                assert ids(bits) == ids(aside)
                assert answer.accept(draw.choice([token for token in ids(bits) if token < 256]))
    assert made, "the limits were never reached"


def test_an_answer_that_passes_the_limits_by_itself_is_told_so_in_a_line(monkeypatch, caplog):
    engine = limited(monkeypatch, 40)
    template = engine.build(engine.prepare(GrammarRef("regex", "(.*a.{6}b){0,30}")))
    follower = Follower(template.open(), Reasoning(GrammarRef("regex", "")), (EOS,), (EOS,))
    draw = random.Random(1)
    with caplog.at_level("INFO", logger="octavo"):
        for _ in range(400):
            window = np.zeros(WORDS, np.int32)
            follower.fill(window)
            token = draw.choice(b"abx")
            if not follower.accept(token):
                break
    assert "too complex for the text that it came to: lexer error: too many states" in follower.complaint(token)
    (line,) = [one for one in caplog.records if "a grammar could not" in one.message]
    assert line.levelname == "INFO"
    assert line.exc_info is None


def test_no_lexer_that_takes_long_is_made_in_the_loop(monkeypatch):
    """The answer ends, and the grammar is compiled again for the next one, elsewhere; aside there is time for it."""
    engine = limited(monkeypatch, 160)
    template = engine.build(engine.prepare(GrammarRef("regex", "(?i)([a-z0-9]{1,20}[-_ ]{1,3}){1,40}")))
    template.slow = True
    made, fresh = [], engine.matcher
    monkeypatch.setattr(engine, "matcher", lambda text: made.append(text) or fresh(text))
    draw = random.Random(1)

    def answers(fill):
        for _ in range(60):
            answer = template.open()
            for _ in range(60):
                bits = np.zeros(WORDS, np.int32)
                fill(answer, bits)
                assert answer.accept(draw.choice([token for token in ids(bits) if token < 256]))

    with pytest.raises(PassedLimits):
        answers(lambda answer, bits: answer.fill(bits))
    assert template.worn
    assert not made
    answer, bits = template.open(), np.zeros(WORDS, np.int32)
    answer.fill_aside(bits)
    for token in b"abc-def":
        assert answer.accept_aside(token)
        answer.fill_aside(bits)
    assert len(made) <= 1


def test_nobody_goes_on_making_lexers_that_are_of_no_use(monkeypatch):
    engine = limited(monkeypatch, 40)
    template = engine.build(engine.prepare(GrammarRef("regex", "(.*a.{6}b){0,30}")))
    made, fresh = [], engine.matcher
    monkeypatch.setattr(engine, "matcher", lambda text: made.append(text) or fresh(text))
    draw, failed = random.Random(1), 0
    for _ in range(12):
        answer = template.open()
        try:
            for _ in range(300):
                bits = np.zeros(WORDS, np.int32)
                answer.fill_aside(bits)
                answer.accept_aside(draw.choice(b"abx"))
        except PassedLimits:
            failed += 1
    assert failed == 12
    assert len(made) <= 12 * guidance._OFTEN


def test_an_enum_of_many_texts_is_within_the_limits():
    """Over a vocabulary whose tokens are pieces of words, of which a mask tries nearly all."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [(a + b + c).encode() for a in letters for b in letters for c in letters]
    pieces = (*(bytes([byte]) for byte in range(256)), b"<eos>", *words)
    engine = Guidance(Vocabulary(len(pieces), pieces, (EOS,), (EOS,)), len(pieces))
    draw = random.Random(0)
    texts = ["".join(draw.choices(letters, k=20)) for _ in range(300)]
    schema = {"type": "object", "properties": {"e": {"enum": texts}}, "required": ["e"]}
    answer = engine.build(engine.prepare(GrammarRef("json_schema", json.dumps(schema)))).open()
    bits = np.zeros((len(pieces) + 31) // 32, np.int32)
    for token in f'{{"e": "{texts[7]}"}}'.encode():
        answer.fill(bits)
        assert answer.accept(token)
