"""Tools of a request, calls as a JSON list, and what events become in chunks and whole answers."""

import itertools
import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import BadRequest
from octavo.front.chat.constraint import constraint
from octavo.front.chat.guided import GuidedCalls
from octavo.front.chat.tools import Choice, calls_schema, for_template, read_choice, read_tools
from octavo.front.parsers.events import Event, Kind
from octavo.front.server.openai.chunks import deltas
from octavo.front.server.openai.news import Message, News
from octavo.outputs import CompletionOutput
from octavo.params import StructuredOutputsParams


def tool(name="f", **function):
    return {"type": "function", "function": {"name": name, **function}}


def deep(levels):
    return {"properties": {"a": deep(levels - 1)}} if levels else {}


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ([], "at least one"),
        ([5], "type is missing"),
        ([tool("x" * 129)], "1 to 128"),
        ([tool(description=5)], "must be text"),
        ([tool(description="\ud800")], "lone surrogate"),
        ([tool(parameters=[])], "a JSON schema"),
        ([tool(parameters={"type": "array"})], "not 'object'"),
        ([tool(parameters=deep(40))], "levels deep"),
        ([tool(f"f{i}", parameters={"x": "y" * 100_000}) for i in range(22)], "together"),
    ],
)
def test_tools_that_are_refused(tools, message):
    with pytest.raises(Exception, match=message) as refused:
        read_tools(tools)
    assert refused.value.param.startswith("tools")


def test_tools_as_templates_see_them():
    given = [tool(strict=True, description=None), tool("g", parameters={"type": "object"})]
    shown = for_template(given)
    assert [sorted(one["function"]) for one in shown] == [["name", "parameters"]] * 2
    assert [one.strict for one in read_tools(given)] == [True, False]


def test_choices():
    tools = read_tools([tool("f"), tool("g")])
    assert read_choice(None, tools) == Choice("auto")
    assert read_choice(None, []) == Choice("none")
    assert read_choice("auto", []) == Choice("none")
    named = {"type": "function", "function": {"name": "g"}}
    assert read_choice(named, tools) == Choice("named", "g")
    for wrong in ({"function": {}}, "g", {"type": "function", "function": {"name": "h"}}):
        with pytest.raises(BadRequest):
            read_choice(wrong, tools)


def test_references_in_a_list_of_calls_follow():
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/T"}, "self": {"$ref": "#"}, "$ref": {"const": {"$ref": "#/x"}}},
        "$defs": {"T": {"enum": [{"$ref": "#/y"}]}},
    }
    moved = calls_schema(read_tools([tool(parameters=schema)]), parallel=False)
    assert moved["maxItems"] == 1
    inner = moved["$defs"]["0"]
    assert inner["properties"]["a"] == {"$ref": "#/$defs/0/$defs/T"}
    assert inner["properties"]["self"] == {"$ref": "#/$defs/0"}
    assert inner["properties"]["$ref"] == {"const": {"$ref": "#/x"}}
    assert inner["$defs"]["T"] == {"enum": [{"$ref": "#/y"}]}


def test_constraints():
    tools = read_tools([tool()])
    asked = StructuredOutputsParams(regex="a")
    assert constraint(None, tools, Choice("auto"), True, asked).params is asked
    forced = constraint(None, tools, Choice("required"), True, asked)
    assert forced.guided
    assert forced.params.kind == "lark"


values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
calls = st.lists(
    st.tuples(st.sampled_from(["f", "parameters", "name"]), st.dictionaries(st.text(max_size=4), values, max_size=3)),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60)
@given(calls, st.lists(st.integers(1, 400), max_size=40), st.sampled_from([None, 1]), st.integers(0, 400))
def test_a_list_of_calls_is_read_however_it_is_cut(calls, cuts, indent, end):
    text = json.dumps([{"name": name, "parameters": args} for name, args in calls], indent=indent, ensure_ascii=False)
    places = [0, *sorted({cut for cut in cuts if cut < len(text)}), len(text)]
    reader, told = GuidedCalls(), Message()
    for start, stop in itertools.pairwise(places):
        told.add(News(0, reader.feed(text[start:stop]), CompletionOutput(0, "", []), None))
    assert [(name, json.loads(arguments)) for _, name, arguments in told.calls] == calls
    assert not reader.truncated
    cut = GuidedCalls()
    events = cut.feed(text[:end])
    begun, ended = (sum(event.kind is kind for event in events) for kind in (Kind.CALL, Kind.CALL_END))
    assert begun - ended in (0, 1)
    assert cut.truncated or begun == ended


def shown(events, alias=False):
    return [msgspec.to_builtins(delta) for delta in deltas(events, alias)]


def test_deltas():
    call = [Event(Kind.CALL, "f", 0, "a"), Event(Kind.ARGUMENTS, "{", 0), Event(Kind.ARGUMENTS, "}", 0)]
    first = {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert shown([]) == []
    assert shown([Event(Kind.CALL_END, "", 0)]) == []
    events = [Event(Kind.REASONING, "r"), Event(Kind.CONTENT, "c"), *call, Event(Kind.CALL_END, "", 0)]
    assert shown(events) == [{"reasoning": "r", "content": "c", "tool_calls": [first]}]
    assert shown(events[:1], alias=True) == [{"reasoning": "r", "reasoning_content": "r"}]
    again = [*call, Event(Kind.CONTENT, "c"), Event(Kind.CALL, "g", 1, "b"), Event(Kind.REASONING, "r")]
    second = {"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": ""}}
    assert shown(again) == [{"tool_calls": [first]}, {"content": "c", "tool_calls": [second]}, {"reasoning": "r"}]
    two = [Event(Kind.ARGUMENTS, "1", 0), Event(Kind.CALL_END, "", 0), Event(Kind.CALL, "g", 1, "b")]
    assert shown(two) == [{"tool_calls": [{"index": 0, "function": {"arguments": "1"}}, second]}]


def test_messages():
    def message(*events):
        told = Message()
        told.add(News(0, list(events), CompletionOutput(0, "", []), "stop"))
        return told.reasoning, told.content, told.calls

    assert message() == (None, "", [])
    assert message(Event(Kind.REASONING, "r")) == ("r", None, [])
    assert message(Event(Kind.CALL, "f", 0, "a")) == (None, None, [("a", "f", "")])
    assert message(Event(Kind.CONTENT, "c"), Event(Kind.CONTENT, "d")) == (None, "cd", [])
