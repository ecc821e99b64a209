"""The second engine, where its package is installed: what it lets through it enforces, the rest it refuses by name."""

import json

import jsonschema
import pytest

from octavo.errors import BadRequest
from octavo.wire.request import GrammarRef
from tests.unit.core.grammar.support import BYTES, EOS, ids, mask, says, told_late
from tests.unit.core.grammar.test_schema import CASES, REFUSED, orders

pytest.importorskip("xgrammar")


@pytest.fixture(scope="module")
def engine():
    from octavo.core.grammar.xgrammar import XGrammar

    return XGrammar(BYTES, 257)


def opened(engine, kind, text, **more):
    text = text if isinstance(text, str) else json.dumps(text)
    return engine.build(engine.prepare(GrammarRef(kind, text, **more))).open()


@pytest.mark.parametrize("topic", CASES)
def test_what_it_accepts_is_valid(engine, topic):
    found, instances = CASES[topic]
    for one in found:
        try:
            grammar = opened(engine, "json_schema", one)
        except BadRequest:
            continue
        kind = jsonschema.validators.validator_for(one, jsonschema.Draft202012Validator)
        right = kind(one, format_checker=jsonschema.FormatChecker())
        for instance in instances:
            texts = [json.dumps(order, ensure_ascii=False) for order in orders(instance)]
            if any(says(grammar, text) for text in texts):
                assert right.is_valid(instance), (one, instance)


@pytest.mark.parametrize(("word", "one"), REFUSED, ids=[f"{word}-{i}" for i, (word, _) in enumerate(REFUSED)])
def test_what_it_cannot_enforce_it_refuses(engine, word, one):
    with pytest.raises(BadRequest):
        opened(engine, "json_schema", one)


def test_other_kinds(engine):
    assert says(opened(engine, "regex", "a{2}|b"), "aa")
    assert says(opened(engine, "choice", ["yes", 'n"o']), 'n"o')
    assert says(opened(engine, "json_object", ""), '{"a": 1}')
    assert not says(opened(engine, "json_object", "", whitespace=""), '{"a": 1}')
    assert says(opened(engine, "grammar", 'root ::= "a" [b]'), "ab")
    assert says(opened(engine, "grammar", 'start: "a" /b+/'), "abb")
    assert says(opened(engine, "lark", 'start: "x" inner\ninner: %json {"type": "integer"}'), "x12")
    tag = {
        "type": "tag",
        "begin": "<",
        "content": {"type": "json_schema", "json_schema": {"type": "integer"}},
        "end": ">",
    }
    assert says(opened(engine, "structural_tag", {"format": tag}), "<12>")
    for kind, wrong in (("regex", "("), ("grammar", "start: ("), ("yaml", "a"), ("grammar", 'x ::= "a"')):
        with pytest.raises(BadRequest):
            opened(engine, kind, wrong)


def test_ends_windows_and_forced_text(engine):
    grammar = opened(engine, "regex", "abc?")
    assert grammar.forced(5)[:1] == [97]
    assert ids(mask(grammar)) == [97]
    assert grammar.accept(97)
    assert not grammar.accept(97)
    assert grammar.accept(98)
    assert ids(mask(grammar)) == [99, EOS]
    assert grammar.accept(EOS)
    assert grammar.accept(EOS)
    assert ids(mask(grammar)) == [EOS]
    grammar.rollback(3)
    assert ids(mask(grammar)) == [98]


def test_what_is_told_late_twice_is_asked_of_no_answer_again(engine, monkeypatch):
    template = engine.build(engine.prepare(GrammarRef("regex", "abc?")))
    told_late(monkeypatch, "xgrammar")
    assert [template.open().forced(1) for _ in range(3)] == [[97], [97], []]
