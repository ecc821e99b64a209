"""Text to what a schema says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.front.parsers.coerce import NOTHING, Schema, coerce, dumps, loads, types


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "integer"}, " 3 ", 3),
        ({"type": "integer"}, "3.0", 3.0),
        ({"type": "integer"}, "1_000", "1_000"),
        ({"type": "integer"}, "three", "three"),
        ({"type": "int32"}, "-7", -7),
        ({"type": "number"}, "3.0", 3),
        ({"type": "number"}, "1e3", 1000),
        ({"type": "number"}, "nan", "nan"),
        ({"type": "number"}, "1e999", "1e999"),
        ({"type": "float"}, "2.5", 2.5),
        ({"type": "boolean"}, "True", True),
        ({"type": "bool"}, "0", False),
        ({"type": "null"}, "NULL", None),
        ({"type": ["string", "null"]}, "12", "12"),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["integer", "string"]}, "12", 12),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
        ({"type": "dict"}, "{'a': 1}", "{'a': 1}"),
        ({"type": "array", "items": {"type": "integer"}}, '["1", 2]', [1, 2]),
        ({"type": "object", "properties": {"u": {"type": "integer"}}}, '{"u": "2", "v": "2"}', {"u": 2, "v": "2"}),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, '{"u": "2"}', {"u": 2}),
        (
            {"anyOf": [{"properties": {"u": {"$ref": "#/$defs/n"}}}, {"type": "null"}]},
            '{"u": ["2", "3"]}',
            {"u": ["2", "3"]},
        ),
        ({"anyOf": [{"properties": {"u": {"$ref": "#/$defs/n"}}}, {"type": "null"}]}, '{"u": "2"}', {"u": 2}),
        ({"enum": [1, 2]}, "2", 2),
        ({"enum": ["a", None]}, "a", "a"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null", None),
        ({"$ref": "#/$defs/n"}, "4", 4),
        ({"$ref": "#/$defs/loop"}, "4", "4"),
        ({"$ref": "https://elsewhere/"}, "4", "4"),
        ({}, "4", "4"),
        (None, "4", "4"),
        (True, "4", "4"),
        ({"type": 3}, "4", "4"),
    ],
)
def test_values(schema, text, value):
    root = {"$defs": {"n": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}}}
    found = coerce(text, schema, root)
    assert found == value
    assert type(found) is type(value) or isinstance(found, (int, float))


def test_a_schema_that_contains_itself_is_bounded():
    root = {"anyOf": [{"$ref": "#"}, {"type": "integer"}]}
    assert types(root, root) == {"integer"}
    node = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    deep = '{"next": ' * 60 + "{}" + "}" * 60
    assert isinstance(coerce(deep, node, node), dict)


def test_only_strings_are_told_as_they_come():
    schema = Schema(
        {"properties": {"s": {"type": "string"}, "n": {"type": "integer"}, "u": {"type": ["string", "null"]}}}
    )
    assert [schema.is_text(key) for key in ("s", "n", "u", "unknown")] == [True, False, False, True]
    assert Schema(None).is_text("x")
    assert Schema([1]).types("x") == frozenset()
    assert "s" in schema
    assert "x" not in schema


kinds = st.sampled_from(["string", "integer", "number", "boolean", "null", "object", "array", "other"])
schemas = st.recursive(
    st.none() | st.booleans() | st.fixed_dictionaries({"type": kinds | st.lists(kinds, max_size=3)}),
    lambda inner: (
        st.fixed_dictionaries({"anyOf": st.lists(inner, max_size=3)})
        | st.fixed_dictionaries({"type": st.just("object"), "properties": st.dictionaries(st.text(max_size=3), inner)})
    ),
    max_leaves=6,
)


@given(
    schemas,
    st.text(max_size=20) | st.sampled_from(["[" * 5000, "[" * 900 + "]" * 900, "1" * 5000, "1e400", "-", '{"a": NaN}']),
)
def test_any_schema_and_text_give_a_value_that_json_can_write(schema, text):
    value = coerce(text, schema, schema if isinstance(schema, dict) else {})
    assert loads(dumps(value)) == value


def test_nothing_is_kept_of_keys_that_no_schema_names():
    schema = Schema({"properties": {"a": {}}})
    for i in range(100):
        assert not schema.member(f"k{i}").kinds
        assert not Schema(None).member(f"k{i}").items.kinds
    assert len(schema._members) == 0
    assert len(NOTHING._members) == 0


def test_values_nested_too_deep_are_text():
    deep = "[" * 900 + "]" * 900
    assert coerce(deep, {"type": "array"}, {}) == deep
    flat = "[" + "[]," * 900 + "[]]"
    assert coerce(flat, {"type": "array"}, {}) == [[]] * 901
