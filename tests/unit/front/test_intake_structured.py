"""Structured outputs at the intake: what was asked becomes a GrammarRef, and bounds are kept before any work."""

from dataclasses import replace

import pytest

from octavo.config.engine import GrammarSection
from octavo.errors import BadRequest, Unsupported
from octavo.front.intake import Intake, Prompt
from octavo.params import MAX_GRAMMAR, SamplingParams, StructuredOutputsParams
from octavo.wire.request import GrammarRef
from tests.unit.front.support import VOCAB, config, ready, small


def ref(asked, settings=None) -> GrammarRef | None:
    intake = Intake(settings or config(), small(), ready())
    params = SamplingParams(max_tokens=4, structured_outputs=asked)
    return intake.admit(Prompt(None, [5, 6]), params, [0])[0].grammar


def asks(**more):
    return StructuredOutputsParams(**more)


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"json": {"type": "integer"}}, "json_schema", '{"type": "integer"}'),
        ({"json": '{"a":1}'}, "json_schema", '{"a":1}'),
        ({"json": True}, "json_schema", "true"),
        ({"json_object": True}, "json_object", ""),
        ({"json_object": False, "regex": "a"}, "regex", "a"),
        ({"choice": ["a", "é"]}, "choice", '["a", "\\u00e9"]'),
        ({"grammar": "start: /a/"}, "grammar", "start: /a/"),
        ({"lark": "start: /a/"}, "lark", "start: /a/"),
        ({"structural_tag": {"format": {"type": "any_text"}}}, "structural_tag", '{"format": {"type": "any_text"}}'),
    ],
)
def test_what_the_core_gets(given, kind, text):
    found = ref(asks(**given))
    assert (found.kind, found.text) == (kind, text)
    assert (found.after, found.whitespace, found.closed) == ((), None, False)


def test_options_and_the_servers_own():
    assert ref(None) is None
    assert ref(asks(json={}, disable_any_whitespace=True)).whitespace == ""
    assert ref(asks(json={}, whitespace_pattern=" ?")).whitespace == " ?"
    assert ref(asks(json={}, disable_additional_properties=True)).closed
    assert ref(asks(json={}, after=(7, 8))).after == (7, 8)
    strict = replace(config(), grammar=GrammarSection(whitespace="", closed=True))
    assert (ref(asks(json={}), strict).whitespace, ref(asks(json={}), strict).closed) == ("", True)
    assert ref(asks(json={}, whitespace_pattern=" ?"), strict).whitespace == " ?"


def test_too_much_is_refused_before_it_is_written_as_text():
    deep: dict = {}
    for _ in range(50_000):
        deep = {"a": deep}
    round_: dict = {}
    round_["a"] = round_
    for given in (
        {"json": deep},
        {"json": round_},
        {"json": {"enum": list(range(1_000_000))}},
        {"json": {"enum": ["x" * 1000] * 2000}},
        {"regex": "a" * (MAX_GRAMMAR + 1)},
        {"choice": ["a"] * 100_000},
        {"json": {"a": {1, 2}}},
        {"json": {"a": float("nan")}},
        {"whitespace_pattern": "x" * 1000, "json": {}},
        {"whitespace_pattern": "", "json": {}},
        {"disable_any_whitespace": 1, "json": {}},
    ):
        with pytest.raises(BadRequest) as error:
            asks(**given)
        assert error.value.param.startswith("structured_outputs")
        assert len(str(error.value)) < 400
    while deep:  # a destructor that recurses so deep would break the stack
        deep = deep.pop("a")


def test_text_that_is_no_unicode_is_refused():
    with pytest.raises(BadRequest, match="surrogate"):
        ref(asks(regex="\ud800"))


def test_a_tokenizer_whose_tokens_have_no_bytes_is_told(monkeypatch):
    monkeypatch.setitem(vars(small()), "pieces", None)
    with pytest.raises(Unsupported, match="stand for bytes"):
        ref(asks(regex="a"))


def test_the_vocabulary_has_the_ends_of_model_and_tokenizer():
    intake = Intake(config(), small(), ready())
    found = intake.vocabulary()
    assert found.eos == intake.eos == (1,)
    assert found.size == VOCAB
    assert found.pieces[4:6] == (b"\x00", b"\x01")
    assert found.special == (0, 1, 2, 3)
