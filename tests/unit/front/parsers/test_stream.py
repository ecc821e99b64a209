"""What a parser does that is no format's own: marks, masks, whitespace, ids, how an answer ends."""

import dataclasses
import json

import pytest

from front.parsers.harness import TOOLS, Told, every, format_of, parse, tokenizer
from octavo.errors import ConfigError
from octavo.front.parsers.base import Format, Tool, choose
from octavo.front.parsers.events import Event, Kind, merged
from octavo.front.parsers.formats.gemma import GEMMA4
from octavo.front.parsers.formats.glm import GLM
from octavo.front.parsers.formats.hermes import HERMES
from octavo.front.parsers.formats.kimi import KIMI_K2
from octavo.front.parsers.formats.llama import LLAMA3_JSON
from octavo.front.parsers.formats.qwen3 import QWEN3_CODER
from octavo.front.parsers.registry import REASONING_PARSERS, TOOL_PARSERS

CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
OFF = {"enable_thinking": False}


def run(spec, text, special=True, **options):
    """The same told whole and token by token."""
    form = format_of(spec, special)
    ids = form._vocabulary.encode(text)
    whole = parse(form, ids, **options)
    assert parse(form, ids, every(ids), **options).facts == whole.facts
    return whole


def test_events_of_one_kind_are_put_together():
    events = [
        Event(Kind.CONTENT, "a"),
        Event(Kind.CONTENT, ""),
        Event(Kind.CONTENT, "b"),
        Event(Kind.CALL, "f", 0, "x"),
    ]
    events += [Event(Kind.ARGUMENTS, "{", 0), Event(Kind.ARGUMENTS, "}", 0), Event(Kind.CALL_END, "", 0)]
    assert merged(events) == [
        Event(Kind.CONTENT, "ab"),
        Event(Kind.CALL, "f", 0, "x"),
        Event(Kind.ARGUMENTS, "{}", 0),
        Event(Kind.CALL_END, "", 0),
    ]


def test_space_around_calls_is_dropped_and_kept_in_prose():
    assert run(HERMES, f"</think>\n\nA \n {CALL}\n{CALL}\n", template_kwargs={}).content == "A"
    assert run(HERMES, f"A \n{CALL}\n B ", template_kwargs=OFF).content == "A\n B"
    assert run(HERMES, " A\n\n", template_kwargs=OFF).content == " A\n\n"
    assert run(HERMES, "\n", template_kwargs=OFF).content == "\n"


def test_special_tokens_that_nobody_named_are_dropped_unless_asked_for():
    text = "A<|turn_end|>B"
    assert run(HERMES, text, template_kwargs=OFF).content == "AB"
    assert run(HERMES, text, template_kwargs=OFF, keep_special=True).content == text
    assert run(HERMES, '</think><tool_call>{<|turn|>"name": "now"}</tool_call>').calls[0][0] == "now"


def test_reasoning_may_be_read_and_not_told():
    told = run(HERMES, "<think>Plan</think>Ok", reasoning=False)
    assert (told.reasoning, told.content, told.tokens) == ("", "Ok", 4)


def test_a_label_is_no_reasoning_and_the_beginning_of_one_is():
    assert run(GEMMA4, "<|channel>thought\nHm<channel|>Ok").reasoning == "Hm"
    assert run(GEMMA4, "<|channel>though<channel|>Ok").reasoning == "though"
    assert run(GEMMA4, "<|channel>thinking").reasoning == "thinking"
    assert run(GEMMA4, "<|channel>tho").reasoning == "tho"


def test_white_space_that_ends_reasoning_may_be_trimmed():
    spec = dataclasses.replace(HERMES, think=HERMES.think._replace(trim=True))
    form = Format(spec, tokenizer(*HERMES.tokens))
    ids = form._vocabulary.encode("<think> a \n b \n\n</think>Ok")
    for cuts in ((), every(ids)):
        assert parse(form, ids, cuts).reasoning == " a \n b"
    assert parse(form, form._vocabulary.encode("a ")).reasoning == "a "


def test_all_is_reasoning_where_it_never_ends():
    told = run(HERMES, "Plan and plan")
    assert (told.reasoning, told.content) == ("Plan and plan", "")


def test_a_call_ends_reasoning_and_markers_that_come_twice_mean_nothing():
    told = run(HERMES, f"<think><think>Plan{CALL}")
    assert (told.reasoning, [call[0] for call in told.calls]) == ("Plan", ["now"])
    assert run(HERMES, "Plan</think></think>Ok").content == "Ok"
    assert run(HERMES, f"</think>{CALL}</tool_call>Ok").content == "Ok"


def test_markup_that_is_no_call_is_content_as_it_was_written():
    for text in (
        '<tool_call>\n{"city": "x"}\n</tool_call> Bye',
        "<tool_call>\nnone\n</tool_call>",
        "<tool_call></tool_call>",
        '<tool_call>{"name": 3}</tool_call>',
        '<tool_call>{"id": 1e999, "name": 1e999}</tool_call>',
        '<tool_call>{"name": "f", "arg',
        "<tool_call>[]</tool_call>",
    ):
        told = run(HERMES, text, template_kwargs=OFF)
        if "arg" in text:
            assert [call[0] for call in told.calls] == ["f"]
        else:
            assert (told.content, told.calls) == (text, [])
    for special in (True, False):
        text = '<|tool_call>call:{"a":1}<tool_call|>'
        assert run(GEMMA4, text, special).content == text


def test_bare_json_is_a_call_if_it_names_a_tool_or_has_arguments():
    for text, names in (
        ('{"name": "now"}', ["now"]),
        ('{"name": "Ann"}', []),
        ('{"name": "Ann", "age": 3}', []),
        ('{"name": "other", "parameters": {}}', ["other"]),
        ('{"parameters": {}, "name": "other"}', ["other"]),
        ('So {x}: {"name": "now"}', []),
        ('So: {"name": "now"}, {"name": "now"};\n{"name": "now"}', ["now"] * 3),
        ('{"a": {"name": "now", "parameters": {}}}', []),
    ):
        told = run(LLAMA3_JSON, text)
        assert [call[0] for call in told.calls] == names
        assert names or told.content == text


def test_a_call_that_breaks_off_keeps_what_came():
    told = run(QWEN3_CODER, "</think><tool_call>\n<function=get_weather>\n<parameter=city>\nPar", stopped=False)
    assert told.calls[0][1] == '{"city": "Par'
    assert told.truncated
    assert told.ended == []
    told = run(QWEN3_CODER, "</think><tool_call>\n<function=get_weather>\n<parameter=days>\n3", stopped=False)
    assert told.calls[0][1] == '{"days": ' or told.calls[0][1] == ""
    told = run(HERMES, '</think><tool_call>{"name": "now", "arguments": {"a": 1, oops}}</tool_call>Ok')
    assert (told.calls[0][1], told.truncated, told.content) == ('{"a": 1', True, "Ok")
    told = run(HERMES, '</think><tool_call>{"name": "now", "arguments": []}</tool_call>Ok')
    assert (told.calls[0][1], told.truncated, told.content) == ("", True, "Ok")


def test_missing_ends_are_forgiven():
    text = "</think><tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n<parameter=days>\n3\n</parameter>"
    text += "\n</function>"
    for more in ("", "\n<function=now>\n</function>", "\n</tool_call>"):
        told = run(QWEN3_CODER, text + more)
        assert json.loads(told.calls[0][1]) == {"city": "Paris", "days": 3}
        assert not told.truncated
    told = run(GLM, "</think><tool_call>now", stopped=True)
    assert told.calls[0][:2] == ["now", "{}"]
    assert run(GLM, "</think><tool_call>now", stopped=False).content == "<tool_call>now"


def test_unknown_tools_are_told_and_numbered_without_holes():
    told = run(
        GLM,
        "</think><tool_call>other<arg_key>a</arg_key><arg_value>1</arg_value></tool_call><tool_call>now</tool_call>",
    )
    assert [call[:2] for call in told.calls] == [["other", '{"a": "1"}'], ["now", "{}"]]


def test_indentation_of_values_is_kept():
    code = "    if x:\n\n        return </parameter>\n"
    told = run(QWEN3_CODER, f"</think><tool_call>\n<function=f>\n<parameter=code>\n{code}\n</parameter>\n</function>")
    assert json.loads(told.calls[0][1]) == {"code": code}


def test_ids():
    one = run(KIMI_K2, KIMI_K2.examples[0].wire)
    assert [call[2] for call in one.calls] == ["functions.get_weather:0", "functions.now:1"]
    form = format_of(KIMI_K2)
    again = form._vocabulary.encode(KIMI_K2.examples[1].wire)
    told = parse(form, again, history_calls=4)
    assert [call[2] for call in told.calls] == ["functions.get_weather:4", "ns.now:1".replace("ns.", "ns.")]
    twice = KIMI_K2.examples[0].wire.replace("now:1", "get_weather:0")
    assert len({call[2] for call in run(KIMI_K2, twice).calls}) == 2
    assert run(HERMES, "</think>" + CALL).calls[0][2].startswith("call_")


def test_a_special_token_whose_text_comes_in_pieces():
    form = format_of(HERMES)
    think = form._vocabulary.id("</think>")
    stream, told = form.open(tools=TOOLS), Told()
    told.add(stream.feed("Plan</th", [(4, think)]))
    assert stream.reasoning_over
    told.add(stream.feed("ink", []))
    told.add(stream.feed(">Ok", []))
    told.add(stream.finish())
    assert (told.reasoning, told.content) == ("Plan", "Ok")


def test_what_ends_reasoning_is_known():
    form = format_of(HERMES)
    assert form.reasoning_end == (form._vocabulary.id("</think>"),)
    assert form._vocabulary.decode(format_of(HERMES, False).reasoning_end) == "</think>"


QWEN3_TEMPLATE = (
    "For each call return a json object with name and arguments within <tool_call></tool_call>: <tool_call>"
    "{{ tool_call.arguments }}</tool_call> {{ content.split('</think>') }} <think>"
)
CODER_TEMPLATE = "<tool_call><function={{ name }}><parameter={{ key }}></parameter></function></tool_call> arguments"


def test_auto_finds_the_format_in_the_template():
    plain = tokenizer()
    found = choose(plain, QWEN3_TEMPLATE)
    assert found is not None
    assert (found.name, found.has_reasoning, found.has_calls) == ("hermes", True, True)
    found = choose(plain, CODER_TEMPLATE)
    assert found is not None
    assert (found.name, found.has_reasoning) == ("qwen3_coder", False)
    assert choose(plain, "{{ messages }}") is None
    assert choose(plain, None) is None
    assert choose(plain, QWEN3_TEMPLATE, None, None) is None
    found = choose(plain, "<think></think>")
    assert found is not None
    assert (found.has_reasoning, found.has_calls) == (True, False)


def test_auto_takes_an_answer_without_markers_for_content():
    found = choose(tokenizer(), QWEN3_TEMPLATE)
    assert found is not None
    assert parse(found, tokenizer().encode("Hello")).content == "Hello"
    assert parse(found, tokenizer().encode("\n<think>Plan</think>Hello")).reasoning == "Plan"
    named = choose(tokenizer(), QWEN3_TEMPLATE, "qwen3", "hermes")
    assert named is not None
    assert parse(named, tokenizer().encode("Plan</think>Hello")).reasoning == "Plan"


def test_reasoning_and_calls_of_two_names_go_together():
    found = choose(tokenizer(), None, "glm45", "hermes")
    assert found is not None
    assert found.spec.think == GLM.think
    assert found.spec.table == HERMES.table
    with pytest.raises(ConfigError, match="hermes"):
        choose(tokenizer(), None, "auto", "hermess")
    with pytest.raises(ConfigError, match="qwen3"):
        choose(tokenizer(), None, "qwen33", None)


@pytest.mark.parametrize("registry", [TOOL_PARSERS, REASONING_PARSERS])
def test_every_name_leads_to_a_format(registry):
    for name in registry:
        assert Format(registry.load(name), tokenizer()).name


def test_hostile_names_and_keys_are_bounded():
    told = run(QWEN3_CODER, "</think><tool_call>\n<function=" + "x" * 2000 + ">")
    assert not told.calls
    told = run(
        QWEN3_CODER, "</think><tool_call>\n<function=now>\n<parameter=" + "k" * 2000 + ">\n</function>\n</tool_call>Ok"
    )
    assert (told.calls[0][0], told.content, told.truncated) == ("now", "Ok", True)


def test_a_single_parameter_that_holds_all_arguments():
    tools = [Tool("f", {"properties": {"a": {"type": "integer"}}})]
    from octavo.front.parsers.formats.deepseek_v4 import DEEPSEEK_V4

    wire = DEEPSEEK_V4.examples[0].wire
    head = wire[wire.index("<｜DSML｜tool_calls>") : wire.index("<｜DSML｜parameter")].replace("get_weather", "f")
    for body, expected in (
        ('<｜DSML｜parameter name="arguments" string="false">{"a": 1}</｜DSML｜parameter>', {"a": 1}),
        ('<｜DSML｜parameter name="input" string="false">{"b": 1}</｜DSML｜parameter>', {"input": {"b": 1}}),
    ):
        told = run(DEEPSEEK_V4, head + body + "\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>", tools=tools)
        assert json.loads(told.calls[0][1]) == expected
