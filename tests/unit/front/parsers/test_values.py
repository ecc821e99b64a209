"""Values of three notations, read as they come; what is told is the beginning of valid JSON whatever is read."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from front.parsers.harness import is_prefix
from octavo.front.parsers.coerce import Schema
from octavo.front.parsers.values import JSON, PYTHON, Literal, Notation

GEMMA = Notation(quotes="", mark="|", bare=True)
keys = st.text(max_size=6)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
objects = st.dictionaries(keys, values, max_size=4)


def read(pieces, notation=JSON, schema=None):
    told: list[str] = []
    literal = Literal(told.append, notation, schema)
    for piece in pieces:
        if literal.take(piece) < len(piece):
            break
    return "".join(told), literal


@given(objects, st.sampled_from([None, 1, 2]), st.booleans())
def test_json_is_told_as_it_is_meant(value, indent, ascii_only):
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    told, literal = read([text])
    assert literal.done
    assert json.loads(told) == value
    assert read(text)[0] == told


@given(objects)
def test_python_is_told_as_json(value):
    text = repr(value)
    told, literal = read([text], PYTHON)
    assert literal.done
    assert json.loads(told) == value
    assert read(text, PYTHON)[0] == told


@given(objects, st.integers(1, 200), st.text("\"'\\{}[],:0123456789.eE+-truefalsn ", max_size=12))
def test_what_is_told_is_a_beginning_of_json(value, cut, garbage):
    text = json.dumps(value)
    told, _ = read([text[:cut] + garbage])
    assert is_prefix(told)
    assert read(text[:cut] + garbage)[0] == told


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1,}', {"a": 1}),
        ('{"a": [1, 2,], }', {"a": [1, 2]}),
        ('{"a": "x\ny"}', {"a": "x\ny"}),
        ('{"a": "\\x \\u12"}', {"a": "\\x \\u12"}),
        ('{"a": "\\ud83d\\ude00"}', {"a": "😀"}),
        ('{"a": True, "b": None, "c": 01}', {"a": True, "b": None, "c": 1}),
    ],
)
def test_slips_that_models_make(text, value):
    told, literal = read([text])
    assert literal.done
    assert json.loads(told) == value
    assert read(text)[0] == told


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{'a': 1_000, 'b': 0x10, 'c': .5, 'd': +3}", {"a": 1000, "b": 16, "c": 0.5, "d": 3}),
        ("{'a': (1, 2), 'b': ()}", {"a": [1, 2], "b": []}),
        (r"{'a': 'it\'s \x41 \U0001F600'}", {"a": "it's A 😀"}),
    ],
)
def test_python_has_more_ways(text, value):
    told, literal = read([text], PYTHON)
    assert literal.done
    assert json.loads(told) == value


@pytest.mark.parametrize(
    "text", ["{'a': 1}", '{"a" 1}', '{"a": foo}', '{"a": 1]', "{1: 2}", '{"a": NaN}', '{"a": 1e999x}', "[" * 200]
)  # fmt: skip
def test_what_is_no_json_stops(text):
    told, literal = read([text])
    assert literal.broken
    assert told.startswith("[") or is_prefix(told)
    assert read(text)[0] == told


def test_nothing_is_evaluated():
    for text in ("{'a': __import__('os')}", "{'a': f'x'}", "{'a': 1+1}", "{'a': [x for x in y]}", "{'a': lambda: 0}"):
        _, literal = read([text], PYTHON)
        assert literal.broken


def test_strings_for_other_types_are_coerced():
    point = {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}}
    schema = Schema(
        {
            "properties": {
                "n": {"type": "integer"},
                "s": {"type": "string"},
                "u": {"type": ["string", "null"]},
                "o": {"anyOf": [{"$ref": "#/$defs/point"}, {"type": "null"}]},
                "l": {"type": "array", "items": {"type": "number"}},
                "m": {"type": "object", "additionalProperties": {"$ref": "#/$defs/point"}},
            },
            "$defs": {"point": point},
        }
    )
    text = """{"n": "3", "s": "4", "u": "null", "o": {"n": "5", "s": "6", "x": "7"}, "l": ["1", "2.5", 3, "y"],
        "m": {"a": {"n": "8"}, "b": [{"n": "9"}]}, "x": ["1"]}"""
    for pieces in ([text], text):
        told, _ = read(pieces, schema=schema)
        assert json.loads(told) == {
            "n": 3,
            "s": "4",
            "u": "null",
            "o": {"n": 5, "s": "6", "x": "7"},
            "l": [1, 2.5, 3, "y"],
            "m": {"a": {"n": 8}, "b": [{"n": "9"}]},
            "x": ["1"],
        }


def test_quotes_that_are_markers():
    told: list[str] = []
    literal = Literal(told.append, GEMMA)
    for piece in ("{a:", "|", 'x, "{', "}", "|", ",b:[", "|", "y", "|", ",1],c d:left over,", "|", "k:", "|", ":-2.5}"):
        if piece == "|":
            assert literal.quotes("|")
            literal.mark()
        else:
            assert literal.take(piece) == len(piece)
    assert literal.done
    assert json.loads("".join(told)) == {"a": 'x, "{}', "b": ["y", 1], "c d": "left over", "k:": -2.5}
    assert math.isfinite(json.loads("".join(told))["k:"])
