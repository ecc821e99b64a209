"""Tools of a request, and what events become in chunks and whole answers."""

import msgspec
import pytest

from front.parsers.harness import tokenizer
from front.support import small
from octavo.errors import BadRequest
from octavo.front.chat.constraint import constraint
from octavo.front.chat.tools import Choice, for_template, read_choice, read_tools
from octavo.front.parsers.base import choose, guided
from octavo.front.parsers.events import Event, Kind
from octavo.front.parsers.formats.harmony import HARMONY
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


@pytest.mark.parametrize("reasoning", ["none", "qwen3"])
def test_constraints(reasoning):
    """Without a parser of calls a model is made to write a JSON list of them, which is read by a parser too."""
    tools = read_tools([tool()])
    asked = StructuredOutputsParams(regex="a")
    form = choose(small(), None, reasoning, "none")
    assert constraint(form, tools, Choice("auto"), True, asked) is asked
    assert constraint(form, tools, Choice("auto"), True) is None
    form = guided(small()) if form is None else form.forced
    forced = constraint(form, tools, Choice("required"), True, asked)
    assert (forced.kind, forced.param) == ("lark", "tools")
    assert '"[" call' in forced.lark
    stream = form.open(tools=tools, template_kwargs={"enable_thinking": False})
    events = stream.feed('[{"name": "f", "parameters": {}}]') + stream.finish()
    assert [event.text for event in events if event.kind is Kind.CALL] == ["f"]


def test_strict_tools_are_enforced_or_refused():
    """Also beside an answer that is JSON, and where calls stand among messages."""
    tools = read_tools([tool(strict=True), tool("g")])
    asked = StructuredOutputsParams(json={"type": "integer"}, param="response_format")
    names = ("openai_gptoss", "openai")
    form = choose(tokenizer(*HARMONY.tokens), None, *names)
    assert constraint(form, read_tools([tool()]), Choice("auto"), True) is None
    assert constraint(form, read_tools([tool()]), Choice("auto"), True, asked) is asked
    alone = constraint(form, tools, Choice("auto"), True)
    assert alone.param == "tools"
    assert "say" in alone.lark
    beside = constraint(form, tools, Choice("auto"), True, asked)
    assert beside.param == "response_format"
    assert beside.lark.endswith('answer: %json {"type": "integer"}\n')
    plain = choose(small(), None, *names)  # no tokens that messages begin with
    for other in (None, asked):
        with pytest.raises(BadRequest, match=r"strict.*'openai'.*possible: tool_choice 'required'") as refused:
            constraint(plain, tools, Choice("auto"), True, other)
        assert refused.value.param == "tools"
    assert constraint(plain, tools, Choice("required"), True) is not None
    assert constraint(plain, tools, Choice("none"), True) is None


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
