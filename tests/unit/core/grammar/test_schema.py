"""JSON schemas: a keyword is enforced as the jsonschema package understands it, or refused by its name."""

import json
import random
from itertools import permutations
from pathlib import Path

import jsonschema
import pytest

from octavo.core.grammar import schema as schemas
from octavo.errors import BadRequest
from tests.unit.core.grammar.support import refusal, sample, says, schema

CHECKER = jsonschema.FormatChecker()
DRAFT4 = "http://json-schema.org/draft-04/schema#"
DRAFT7 = "http://json-schema.org/draft-07/schema#"


def obj(**more):
    return {"type": "object", **more}


A, B = {"type": "integer"}, {"type": "string"}
#: Topic -> schemas, and the instances that each is asked about.
CASES = {
    "any": ([True, {}], [1, 1.5, "a", None, True, [], [1, {"a": []}], {}, {"a": {"b": None}}]),
    "type": (
        [{"type": one} for one in ("integer", "number", "string", "boolean", "null", "array", "object")]
        + [{"type": ["string", "null"]}],
        [0, -7, 12, 1.5, -0.25, "", "é🙂", "true", True, False, None, [], [1], {}, {"a": 1}],
    ),
    "enum": (
        [
            {"enum": [1, "a", None, [1, 2], {"a": 1}]},
            {"enum": ["ab", "c", 3], "type": "string"},
            {"enum": ['a\n"\\', "é"]},
        ],
        [1, 2, "a", "ab", "c", "", None, [1, 2], [2, 1], {"a": 1}, {"a": 2}, 3, 'a\n"\\', "é"],
    ),
    "const": (
        [{"const": {"a": [1]}}, {"const": "x"}, {"const": None}, {"const": False}, {"const": 10**12}],
        [{"a": [1]}, {"a": []}, "x", "xx", None, False, True, 0, 10**12],
    ),
    "integer bounds": (
        [
            {"type": "integer", "minimum": 3, "maximum": 12},
            {"type": "integer", "exclusiveMinimum": -3, "exclusiveMaximum": 5},
            {"type": "integer", "minimum": 2.5, "maximum": 1e3},
            {"type": "integer", "minimum": -100},
            {"type": "integer", "maximum": 99},
            {"type": "integer", "multipleOf": 7},
            {"type": "integer", "multipleOf": 6, "minimum": 10},
        ],
        [-101, -100, -99, -4, -3, -2, 0, 1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 14, 42, 99, 100, 999, 1000, 1001],
    ),
    "number bounds": (
        [
            {"type": "number", "minimum": -1.5, "maximum": 2.25},
            {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
            {"type": "number", "exclusiveMaximum": 2.5},
            {"type": "number", "multipleOf": 0.5},
            {"minimum": 5},
        ],
        [-2, -1.51, -1.5, -1, 0, 0.001, 0.5, 0.75, 1, 1.001, 2.25, 2.26, 2.5, 3, 5, 4.99, 100.5, "a", None],
    ),
    "string lengths": (
        [{"type": "string", "minLength": 2}, {"type": "string", "maxLength": 2}, {"minLength": 1, "maxLength": 3}],
        ["", "a", "ab", "abc", "abcd", "éé", "🙂🙂", "🙂🙂🙂", "\n\n", '""', "\\", 1, None],
    ),
    "pattern": (
        [
            {"type": "string", "pattern": "^a+b$"},
            {"type": "string", "pattern": "ab"},
            {"type": "string", "pattern": "^[A-Z]{2}\\d{2}$"},
            {"type": "string", "pattern": "a|b$"},
            {"type": "string", "pattern": '^[^"]{2}$'},
            {"type": "string", "pattern": "^a", "minLength": 3, "maxLength": 4},
            {"pattern": "^(x|y)*$"},
        ],
        [
            "",
            "ab",
            "aab",
            "xaby",
            "AB12",
            "AB1",
            "ab12",
            "b",
            "bx",
            'a"',
            "a\n",
            "abc",
            "abcd",
            "abcde",
            "xyx",
            "xz",
            4,
        ],
    ),
    "format": (
        [{"type": "string", "format": one} for one in ("date", "ipv4", "ipv6", "uuid")],
        [
            "2024-02-29",
            "2023-02-29",
            "1900-02-29",
            "2000-02-29",
            "2023-04-31",
            "2023-13-01",
            "1.2.3.4",
            "1.2.3",
            "256.1.1.1",
            "::1",
            "1::2::3",
            "12345::",
            "123e4567-e89b-12d3-a456-426614174000",
            "x",
        ],
    ),
    "array": (
        [
            {"type": "array", "items": A},
            {"type": "array", "minItems": 2},
            {"type": "array", "maxItems": 1},
            {"type": "array", "items": A, "minItems": 1, "maxItems": 3},
            {"type": "array", "prefixItems": [A, B]},
            {"type": "array", "prefixItems": [A, B], "items": False},
            {"type": "array", "prefixItems": [A], "items": {"type": "null"}, "minItems": 2},
            {"items": False},
        ],
        [
            [],
            [1],
            [1, 2],
            [1, 2, 3],
            [1, 2, 3, 4],
            [1, "a"],
            [1, "a", None],
            ["a"],
            [1, None],
            [1, None, None],
            [[]],
            3,
        ],
    ),
    "object": (
        [
            obj(properties={"a": A, "b": B}),
            obj(properties={"a": A, "b": B}, required=["b"]),
            obj(properties={"a": A, "b": B}, additionalProperties=False),
            obj(properties={"a": A}, additionalProperties=B),
            obj(required=["b"]),
            obj(minProperties=1),
            obj(maxProperties=1),
            obj(properties={"a": A}, required=["a"], minProperties=2),
            obj(patternProperties={"^a": A}),
            obj(patternProperties={"^a": A}, additionalProperties=False),
            obj(properties={"a": False}),
            obj(additionalProperties=False),
        ],
        [
            {},
            {"a": 1},
            {"a": "x"},
            {"b": "x"},
            {"a": 1, "b": "x"},
            {"a": 1, "b": 2},
            {"c": 1},
            {"a": 1, "c": "x"},
            {"a": 1, "c": 2},
            {"ab": 1},
            {"ab": "x"},
            {"b": 1, "c": 2},
            {"a": {"a": 1}},
            4,
        ],
    ),
    "combined": (
        [
            {"anyOf": [A, {"type": "string", "maxLength": 2}]},
            {"allOf": [A, {"minimum": 3}, {"maximum": 4}]},
            {"oneOf": [A, B]},
            {"oneOf": [obj(properties={"b": {"const": n}}, required=["b"]) for n in "xy"]},
            {"anyOf": [obj(required=["a"]), obj(required=["b"])]},
            {"allOf": [obj(properties={"a": A}, required=["a"]), obj(properties={"b": B}, required=["b"])]},
            {"type": "integer", "anyOf": [{"minimum": 10}, {"maximum": 1}]},
            {"allOf": [{"pattern": "a"}, {"pattern": "b"}]},
        ],
        [
            1,
            2,
            3,
            4,
            5,
            10,
            "a",
            "ab",
            "abc",
            "ba",
            None,
            {"a": 1},
            {"a": 2},
            {"a": 3},
            {"b": "x"},
            {"a": 1, "b": "x"},
            {},
        ],
    ),
    "references": (
        [
            {"$ref": "#/$defs/a", "$defs": {"a": A}},
            {"$ref": "#/$defs/a", "minimum": 2, "$defs": {"a": A}},
            {"definitions": {"a b": A}, "$ref": "#/definitions/a%20b"},
            {"$ref": "#x", "$defs": {"a": {"$anchor": "x", "type": "null"}}},
            obj(properties={"a": {"$ref": "#"}}, additionalProperties=False),
            {"$id": "http://example.com/x", "type": "array", "items": {"$ref": "#"}},
            {"anyOf": [A, {"type": "array", "items": {"$ref": "#"}}]},
        ],
        [1, 2, 3, "a", None, {}, {"a": {}}, {"a": {"a": {}}}, {"a": 1}, {"b": {}}, [], [[]], [[1]], [[], [[2]]]],
    ),
    "property names": (
        [
            obj(propertyNames={"type": "string"}, additionalProperties=A),
            obj(propertyNames={"enum": ["a", "c", 3]}, additionalProperties=A),
            obj(propertyNames={"enum": ["a", "ab"]}, properties={"a": B, "b": B}, additionalProperties=A),
            obj(propertyNames={"enum": ["a", "b"]}, properties={"b": B}, required=["a"]),
            {"propertyNames": {"const": "b", "type": "string", "title": "one"}},
            obj(propertyNames={"$ref": "#/$defs/n"}, additionalProperties=A, **{"$defs": {"n": {"enum": ["a"]}}}),
            {"propertyNames": {"pattern": "a"}},
            obj(propertyNames={"pattern": "^[a-b]$"}, additionalProperties=A),
            obj(propertyNames={"maxLength": 1}, additionalProperties=A),
            obj(propertyNames={"minLength": 1, "maxLength": 2}),
            {"allOf": [obj(propertyNames={"enum": ["a", "b"]}), obj(properties={"a": A}, required=["a"])]},
        ],
        [
            {},
            {"a": 1},
            {"a": "x"},
            {"b": 1},
            {"b": "x"},
            {"a": 1, "b": "x"},
            {"a": "x", "ab": 1},
            {"ab": 1},
            {"c": 1},
            {"a": 1, "c": 2},
            {"": 1},
            {"é": 1},
            {"🙂a": 1},
            {"abc": 1},
            4,
        ],
    ),
    "what nothing else looks at": (
        [
            obj(properties={"a": A}, unevaluatedProperties=False),
            obj(properties={"a": A}, unevaluatedProperties=B),
            obj(properties={"a": A}, additionalProperties=B, unevaluatedProperties=False),
            obj(patternProperties={"^b": B}, unevaluatedProperties=A),
            {"type": "array", "prefixItems": [A], "unevaluatedItems": False},
            {"type": "array", "prefixItems": [A], "unevaluatedItems": B},
            {"type": "array", "items": A, "unevaluatedItems": False},
            {"type": "array", "items": A, "maxItems": 1, "uniqueItems": True},
        ],
        [{}, {"a": 1}, {"a": "x"}, {"a": 1, "b": "x"}, {"b": 1}, {"b": "x"}, [], [1], ["x"], [1, "x"], [1, 1], [1, 2]],
    ),
    "draft 4": (
        [
            {"$schema": DRAFT4, "type": "integer", "minimum": 1, "exclusiveMinimum": True},
            {"$schema": DRAFT4, "type": "integer", "maximum": 3, "exclusiveMaximum": False},
            {"$schema": DRAFT7, "type": "array", "items": [A, B], "additionalItems": False},
            {"$schema": DRAFT7, "type": "array", "items": [A]},
            {"$schema": DRAFT7, "type": "array", "items": A, "additionalItems": False},
        ],
        [0, 1, 2, 3, 4, [], [1], [1, "a"], [1, "a", 2], ["a"], [1, 2]],
    ),
    "annotations": (
        [
            {"title": "x", "description": "y", "default": 3, "examples": [1], "deprecated": True, "type": "integer"},
            {"$comment": "x", "readOnly": True, "contentEncoding": "base64", "type": "string", "own word": {"not": 1}},
            obj(properties={"not": A, "if": B, "title": A}, required=["not"]),
        ],
        [1, "a", None, {"not": 1}, {"not": "a"}, {"not": 1, "if": "x"}, {"if": "x"}],
    ),
}


def orders(instance):
    """The instance with its properties in each order: named ones come as the schema has them, before others."""
    if not isinstance(instance, dict):
        return [instance]
    return [dict(pairs) for pairs in permutations(instance.items())]


@pytest.mark.parametrize("topic", CASES)
def test_instances_are_taken_as_jsonschema_takes_them(topic):
    found, instances = CASES[topic]
    for one in found:
        kind = jsonschema.validators.validator_for(one, jsonschema.Draft202012Validator)
        right, grammar = kind(one, format_checker=CHECKER), schema(one)
        taken = 0
        for instance in instances:
            valid = right.is_valid(instance)
            taken += valid
            for separators in ((",", ":"), (", ", ": ")):
                texts = [json.dumps(order, separators=separators, ensure_ascii=False) for order in orders(instance)]
                assert any(says(grammar, text) for text in texts) == valid, (one, texts[0])
        assert taken, one


@pytest.mark.parametrize("topic", [topic for topic in CASES if topic not in ("draft 4",)])
def test_what_is_said_at_random_is_valid(topic):
    rng = random.Random(5)
    for one in CASES[topic][0]:
        right = jsonschema.Draft202012Validator(one, format_checker=CHECKER)
        for _ in range(8):
            text = sample(schema(one), rng)
            if text is not None:
                right.validate(json.loads(text))


REFUSED = [
    ("not", {"not": {"type": "string"}}),
    ("if", {"if": {}, "then": {}}),
    ("then", {"then": False}),
    ("else", {"else": False}),
    ("contains", {"contains": A}),
    ("minContains", {"minContains": 2}),
    ("maxContains", {"maxContains": 2}),
    ("uniqueItems", {"type": "array", "uniqueItems": True}),
    ("propertyNames", {"propertyNames": {"not": {"pattern": "a"}}}),
    ("propertyNames", {"propertyNames": False}),
    ("propertyNames", {"propertyNames": {"type": "integer"}}),
    ("propertyNames", {"propertyNames": {"pattern": "a"}, "properties": {"a": A}}),
    ("propertyNames", {"propertyNames": {"pattern": "a"}, "required": ["a"]}),
    ("propertyNames", {"propertyNames": {"pattern": "a"}, "patternProperties": {"b": A}}),
    ("propertyNames", {"propertyNames": {"enum": ["a"]}, "required": ["b"]}),
    ("propertyNames", {"propertyNames": {"enum": ["a"], "pattern": "b"}}),
    ("propertyNames", {"propertyNames": {"$ref": "#/nowhere"}}),
    ("uniqueItems", {"type": "array", "uniqueItems": True, "maxItems": 2}),
    ("dependentRequired", {"dependentRequired": {"a": ["b"]}}),
    ("dependentSchemas", {"dependentSchemas": {"a": {}}}),
    ("dependencies", {"dependencies": {"a": ["b"]}}),
    ("unevaluatedProperties", {"unevaluatedProperties": False, "allOf": [obj(properties={"a": A})]}),
    ("unevaluatedItems", {"unevaluatedItems": False, "anyOf": [{"prefixItems": [A]}, B]}),
    ("$dynamicRef", {"$dynamicRef": "#a"}),
    ("$recursiveRef", {"$recursiveRef": "#"}),
    ("divisibleBy", {"divisibleBy": 2}),
    ("disallow", {"disallow": "string"}),
    ("extends", {"extends": {}}),
    ("formatMinimum", {"format": "date", "formatMinimum": "2020-01-01"}),
    ("x-guidance", {"x-guidance": {"whitespace_flexible": False}}),
    ("format", {"format": "unknown"}),
    ("format", {"format": "regex"}),
    ("format", {"format": 3}),
    ("$ref", {"$ref": "http://example.com/other"}),
    ("$ref", {"$ref": "other.json#/a"}),
    ("$id", {"properties": {"a": {"$id": "x"}}}),
    ("minProperties", obj(minProperties=2)),
    ("oneOf", {"oneOf": [A, {"minimum": 2}]}),
    ("minimum", {"type": "integer", "minimum": 10**30}),
    ("minLength", {"minLength": -1}),
    ("maxItems", {"maxItems": 1e9}),
    ("maxLength", {"maxLength": "3"}),
    ("enum", {"enum": list(range(20_000))}),
    ("const", {"const": "\x01"}),
    ("properties", {"properties": {"\x00": {}}}),
    ("properties", {"properties": [1]}),
    ("anyOf", {"anyOf": []}),
    ("allOf", {"allOf": {}}),
    ("type", {"type": 5}),
    ("type", {"type": "integr"}),
    ("required", {"required": "a"}),
]


@pytest.mark.parametrize(("word", "one"), REFUSED, ids=[f"{word}-{i}" for i, (word, _) in enumerate(REFUSED)])
def test_what_cannot_be_enforced_is_refused_by_name(word, one):
    assert word in (refusal(one) or ""), refusal(one)
    assert word in (refusal({"type": "array", "items": {"anyOf": [one]}}) or ""), "deeper"


@pytest.mark.parametrize("word", sorted(schemas.REFUSED))
def test_every_refused_word_says_where(word):
    assert f"{word!r}" in refusal({"properties": {"a": {word: [1]}}})
    assert "#/properties/a" in refusal({"properties": {"a": {word: [1]}}})


def test_words_that_ask_for_nothing_are_no_reason_to_refuse():
    assert refusal({"type": "array", "uniqueItems": False}) is None
    assert refusal({"unevaluatedProperties": {}, "dependentRequired": {}}) is None


def test_nonsense_is_refused():
    deep: dict = {}
    for _ in range(100):
        deep = {"properties": {"a": deep}}
    for one in (False, 3, "x", [], deep, {"pattern": "["}, {"pattern": "(?=a)"}, {"$ref": "#/nowhere"}, {"$ref": "#"}):
        assert refusal(one), one
    for text in ("{", "[" * 100_000, '{"minimum": NaN}', "1" * 10_000):
        with pytest.raises(BadRequest):
            schema(text)


def test_times_and_dates_with_times():
    """jsonschema has no checker for date-time of its own, and its times need no zone."""
    cases = {
        "time": {"12:00:00Z": True, "23:59:59.123+01:30": True, "12:00:00": False, "24:00:00Z": False, "12:00Z": False},
        "date-time": {"2024-02-29T00:00:00Z": True, "2023-02-29T00:00:00Z": False, "2024-01-01 00:00:00Z": False},
        "duration": {"P1D": True, "PT1H30M": True, "P": False, "P1W2D": False},
        "email": {"a@b.c": True, "a": False, "@b": False, "a b@c.d": False},
        "hostname": {"a.b": True, "-a": False, "a..b": False, "a" * 64: False},
        "uri": {"http://a.b/c?d#e": True, "a": False, "http://a b": False},
    }
    assert set(cases) | {"date", "ipv4", "ipv6", "uuid"} == set(schemas.FORMATS)
    for name, texts in cases.items():
        grammar = schema({"type": "string", "format": name})
        assert {text: says(grammar, json.dumps(text)) for text in texts} == texts


def test_a_set_leaves_out_the_quote_and_the_backslash_that_it_does_not_have():
    cases = {'^[^"]$': "\\", "^[^\\\\]$": '"', '^[^"\\\\]$': "", "^[\\x00-!#-~]$": "\\", "^[ab]$": "", "^\\W$": '"\\'}
    for pattern, right in cases.items():
        grammar = schema({"type": "string", "pattern": pattern})
        assert {char for char in '"\\' if says(grammar, json.dumps(char))} == set(right), pattern
        grammar = schema(obj(patternProperties={pattern: A}, additionalProperties=False))
        assert {char for char in '"\\' if says(grammar, json.dumps({char: 1}))} == set(right), pattern


def test_a_property_cannot_come_under_an_escaped_name():
    grammar = schema(obj(properties={"a": A}))
    assert says(grammar, '{"a":1}')
    assert not says(grammar, '{"\\u0061":"x"}')
    assert not says(grammar, '{"a":1,"a":"x"}')


def test_whitespace_and_closed_objects():
    value = obj(properties={"a": A}, required=["a"])
    free, tight, own = schema(value), schema(value, whitespace=""), schema(value, whitespace=" ?")
    assert says(free, '{\n  "a": 1\n}')
    assert not says(free, "{" + " " * 1000 + '"a": 1}')
    assert says(tight, '{"a":1}')
    assert not says(tight, '{"a": 1}')
    assert says(own, '{ "a": 1 }')
    assert not says(own, '{  "a": 1}')
    assert says(free, '{"a":1,"b":2}')
    assert not says(schema(value, closed=True), '{"a":1,"b":2}')


def test_real_schemas_compile_or_are_refused_by_a_named_keyword():
    package = pytest.importorskip("check_jsonschema")
    folder = Path(package.__file__).parent / "builtin_schemas"
    found = sorted(folder.rglob("*.json"))
    assert len(found) > 20
    compiled = 0
    for path in found:
        why = refusal(json.loads(path.read_text()))
        compiled += why is None
        assert why is None or "'" in why or "large" in why or "Properties" in why, (path.name, why)
    assert compiled >= 4
