"""What is peculiar to single families."""

import json

import pytest

from front.parsers.harness import TOOLS, every, format_of, parse, tokenizer
from front.parsers.test_grammar import accepts
from octavo.front.parsers.base import Format, Tool, choose
from octavo.front.parsers.formats.deepseek_v3 import DEEPSEEK_V3, DEEPSEEK_V31
from octavo.front.parsers.formats.deepseek_v4 import DEEPSEEK_V4, DEEPSEEK_V32
from octavo.front.parsers.formats.hy_v3 import HY_V3, hy_v3
from octavo.front.parsers.formats.minimax import APPEND_THINK, MINIMAX_M2, MINIMAX_M3
from octavo.front.parsers.formats.qwen3 import NEMOTRON_V3, QWEN3_CODER
from octavo.front.parsers.formats.step3 import STEP3
from octavo.front.parsers.formats.thinking import DEEPSEEK_R1, HOLO2
from octavo.front.parsers.formats.thinking import DEEPSEEK_V3 as DEEPSEEK_V3_THINKING

MARK = "]<]minimax[>["
NESTED = Tool(
    "plan",
    {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "steps": {"type": "array", "items": {"$ref": "#/$defs/step"}},
            "tags": {"type": "array", "items": {"type": "integer"}},
            "where": {"$ref": "#/$defs/place"},
            "maybe": {"type": ["integer", "null"]},
        },
        "required": ["title"],
        "$defs": {
            "step": {"type": "object", "properties": {"n": {"type": "integer"}, "what": {"type": "string"}}},
            "place": {"type": "object", "properties": {"at": {"$ref": "#/$defs/place"}, "x": {"type": "number"}}},
        },
    },
)


def run(spec, text, special=True, form=None, **options):
    """The same told whole and token by token."""
    form = form or format_of(spec, special)
    ids = form._vocabulary.encode(text)
    whole = parse(form, ids, **options)
    assert parse(form, ids, every(ids), **options).facts == whole.facts
    whole.check()
    return whole


def elements(**members) -> str:
    def value(one):
        if isinstance(one, dict):
            return elements(**one)
        if isinstance(one, list):
            return "".join(elements(item=item) for item in one)
        return str(one)

    return "".join(f"{MARK}<{key}>{value(one)}{MARK}</{key}>" for key, one in members.items())


def m3(body: str) -> str:
    return f'{MARK}<tool_call>\n{MARK}<invoke name="plan">{body}{MARK}</invoke>\n{MARK}</tool_call>'


def test_reasoning_that_is_all_of_an_answer_can_be_its_content():
    on, off = {"force_nonempty_content": True}, {"enable_thinking": False}
    for kwargs in (on, {**on, "enable_thinking": True}):
        assert run(NEMOTRON_V3, "Plan", template_kwargs=kwargs).facts[:2] == ("", "Plan")
        assert run(NEMOTRON_V3, "Plan</think>\n", template_kwargs=kwargs).facts[:2] == ("", "Plan")
        assert run(NEMOTRON_V3, "Plan\n</think>\nOk", template_kwargs=kwargs).facts[:2] == ("Plan", "Ok")
        assert run(NEMOTRON_V3, "Plan</think>Ok", template_kwargs=kwargs, reasoning=False).content == "Ok"
        assert run(NEMOTRON_V3, "Plan", template_kwargs=kwargs, reasoning=False).content == "Plan"
        told = run(NEMOTRON_V3, "Plan<tool_call>\n<function=now>\n</function>\n</tool_call>", template_kwargs=kwargs)
        assert (told.reasoning, told.content, len(told.calls)) == ("Plan", "", 1)
    assert run(NEMOTRON_V3, "<think>Plan</think>", template_kwargs=off).facts[:2] == ("", "Plan")
    assert run(NEMOTRON_V3, "Plan").facts[:2] == ("Plan", "")
    assert run(QWEN3_CODER, "Plan", template_kwargs=on).facts[:2] == ("Plan", "")


def test_reasoning_may_stay_in_the_content():
    assert run(APPEND_THINK, "Plan\n</think>\n\nOk").facts[:2] == ("", "<think>Plan\n</think>\n\nOk")
    assert run(APPEND_THINK, "<think>Plan</think>Ok").content == "<think>Plan</think>Ok"
    assert run(APPEND_THINK, "Ok", template_kwargs={"enable_thinking": False}).content == "Ok"
    assert run(APPEND_THINK, "").content == ""
    told = run(APPEND_THINK, '<think>Plan<minimax:tool_call><invoke name="now"></invoke></minimax:tool_call>')
    assert (told.content, len(told.calls)) == ("<think>Plan</think>", 1)
    assert run(APPEND_THINK, "Plan</think>Ok", reasoning=False).content == "Ok"


@pytest.mark.parametrize(
    ("spec", "kwargs", "reasons"),
    [
        (DEEPSEEK_R1, {}, True),
        (DEEPSEEK_V3_THINKING, {}, False),
        (DEEPSEEK_V3_THINKING, {"thinking": True}, True),
        (DEEPSEEK_V3_THINKING, {"enable_thinking": True}, True),
        (HOLO2, {}, True),
        (HOLO2, {"thinking": False}, False),
        (DEEPSEEK_V31, {}, False),
        (DEEPSEEK_V32, {"thinking": True}, True),
        (DEEPSEEK_V4, {}, False),
        (DEEPSEEK_V4, {"thinking": True}, True),
        (DEEPSEEK_V4, {"thinking": True, "reasoning_effort": "high"}, True),
        (DEEPSEEK_V4, {"thinking": True, "reasoning_effort": "none"}, False),
        (HY_V3, {}, False),
        (HY_V3, {"reasoning_effort": "high"}, True),
        (HY_V3, {"reasoning_effort": "no_think", "enable_thinking": True}, False),
        (MINIMAX_M3, {}, False),
        (MINIMAX_M3, {"thinking_mode": "enabled"}, True),
        (MINIMAX_M3, {"thinking_mode": "adaptive"}, False),
        (MINIMAX_M2, {}, True),
    ],
)
def test_the_templates_variables_tell_whether_an_answer_begins_with_reasoning(spec, kwargs, reasons):
    told = run(spec, "Hi", template_kwargs=kwargs)
    assert (told.reasoning, told.content) == (("Hi", "") if reasons else ("", "Hi"))


@pytest.mark.parametrize("special", [True, False])
def test_nested_elements_become_what_the_schema_says(special):
    value = {
        "title": "a <b> & </c>",
        "steps": [{"n": 1, "what": "x"}, {"n": 2, "what": "3"}],
        "tags": [1, 2],
        "where": {"at": {"x": 2.5}, "x": 1},
        "maybe": None,
        "unknown": {"deep": ["4"]},
    }
    wire = m3(elements(**value | {"maybe": "null"}))
    told = run(MINIMAX_M3, wire, special, tools=[NESTED])
    assert json.loads(told.calls[0][1]) == value
    assert told.content == ""
    for body, expected in (
        (elements(tags=""), {"tags": []}),
        (elements(tags="[1, 2]"), {"tags": [1, 2]}),
        (elements(where=""), {"where": {}}),
        (elements(where='{"x": "1"}'), {"where": {"x": 1}}),
        (elements(title=""), {"title": ""}),
        (elements(title=elements(b="x")), {"title": elements(b="x")}),
        (f"{MARK}<tags>{MARK}<tag>1{MARK}</tag>{MARK}<tag>2{MARK}</tag>{MARK}</tags>", {"tags": [1, 2]}),
        (f"{MARK}<steps>{MARK}<item>{MARK}<n>1{MARK}</steps>", {"steps": [{"n": 1}]}),
        (f"\n{MARK}<title>x{MARK}</title>\n{MARK}</where>junk", {"title": "x"}),
        (f"{MARK}<x>a{MARK}b{MARK}</x>", {"x": f"a{MARK}b"}),
        ("", {}),
    ):
        told = run(MINIMAX_M3, m3(body), special, tools=[NESTED])
        assert json.loads(told.calls[0][1]) == expected, body
        assert not told.truncated


def test_elements_that_break_off_keep_what_came():
    wire = m3(elements(title="Paris", steps=[{"n": 1, "what": "see"}]))
    told = run(MINIMAX_M3, wire[: wire.index("ee")], tools=[NESTED], stopped=False)
    assert told.calls[0][1] == '{"title": "Paris", "steps": [{"n": 1, "what": "s'
    assert (told.truncated, told.ended) == (True, [])
    deep = m3("".join(f"{MARK}<a>" for _ in range(500)))
    told = run(MINIMAX_M3, deep + "Ok", tools=[NESTED])
    assert (told.truncated, told.content, len(told.calls)) == (True, "Ok", 1)
    told = run(MINIMAX_M3, m3(f"{MARK}<{'k' * 2000}>") + "Ok", tools=[NESTED])
    assert (told.truncated, told.content, len(told.calls)) == (True, "Ok", 1)


@pytest.mark.parametrize("special", [True, False])
def test_grammar_of_nested_elements(special):
    form = format_of(MINIMAX_M3, special)
    grammar = form.tool_grammar([NESTED], required=True, named=None, parallel=False)

    def wire(**members):
        return m3(elements(**members)).replace(f"{MARK}</invoke>\n", f"{MARK}</invoke>\n")

    good = wire(title="a <b>", steps=[{"n": 1, "what": "x"}, {"n": 2}], tags=[1, 2], where={"x": 1.5}, maybe="null")
    assert accepts(form, grammar, good)
    assert json.loads(run(MINIMAX_M3, good, special, tools=[NESTED]).calls[0][1])["steps"][1] == {"n": 2}
    assert not accepts(form, grammar, wire(steps=[{"n": 1}]))
    assert not accepts(form, grammar, wire(title="x", steps=[{"n": "one"}]))
    assert not accepts(form, grammar, wire(title="x", tags=["y"]))


@pytest.mark.parametrize("spec", [DEEPSEEK_V32, DEEPSEEK_V4])
def test_a_special_token_that_is_a_part_of_a_tag(spec):
    """The word inside of DeepSeek's tags may be a special token; it is written as that where a grammar forces calls."""
    form = Format(spec, tokenizer(*spec.tokens, "｜DSML｜", "<|turn|>"))
    for example in spec.examples:
        told = run(spec, example.wire, form=form)
        assert [(name, json.loads(arguments)) for name, arguments, _ in told.calls] == list(example.calls)
        assert told.content == example.content
    calls = spec.examples[0].wire.split("Hi\n\n")[1]
    for required in (True, False):
        grammar = form.tool_grammar(TOOLS, required=required, named=None, parallel=True)
        assert accepts(form, grammar, calls)
        assert accepts(form, grammar, calls.replace("Paris", "</ <b> </"))
        assert not accepts(form, grammar, calls.replace("get_weather", "get"))
        assert accepts(form, grammar, "Hello") is not required


def test_the_vocabulary_tells_how_markers_end():
    suffixed = hy_v3(":opensource")
    vocabulary = tokenizer(*suffixed.tokens)
    found = choose(vocabulary, None, "hy_v3", "hy_v3")
    assert found is not None
    for example in suffixed.examples:
        told = run(suffixed, example.wire, form=found, template_kwargs={"reasoning_effort": "no_think"})
        assert [(name, json.loads(arguments)) for name, arguments, _ in told.calls] == list(example.calls)
        assert (told.reasoning, told.content) == (example.reasoning, example.content)
    assert vocabulary.decode(found.reasoning_end, skip_special_tokens=False) == "</think:opensource>"
    plain = choose(tokenizer(*HY_V3.tokens), None, "hy_v3", "hy_v3")
    assert plain is not None
    assert plain.spec == HY_V3


def test_gigachats_first_release_calls_by_a_header():
    first = choose(tokenizer("<|role_sep|>", "<|message_sep|>"), None, None, "gigachat3")
    assert first is not None
    wire = 'function call<|role_sep|>\n{"name": "now", "arguments": {}}'
    grammar = first.tool_grammar(TOOLS, required=True, named=None, parallel=False)
    assert accepts(first, grammar, wire)
    told = run(None, f"Ok.<|message_sep|>\n\n{wire}<|message_sep|>\n\n", form=first)
    assert (told.content, [call[0] for call in told.calls]) == ("Ok.", ["now"])


@pytest.mark.parametrize("spec", [STEP3, DEEPSEEK_V3])
def test_what_says_the_kind_of_a_call_is_no_content(spec):
    text = spec.examples[0].wire
    told = run(spec, text.replace("function", "anything at all", 1), template_kwargs={})
    assert (told.content, len(told.calls)) == ("Ok.", 2)
    begin = next(iter(spec.table["content"]))
    told = run(spec, f"</think>{begin}{spec.tokens[4]}function", stopped=False)
    assert told.content == f"{begin}{spec.tokens[4]}function"
