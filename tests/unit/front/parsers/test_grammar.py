"""Grammars of tool calls: they allow what the parser reads, and nothing else."""

import functools
import json
import re

import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from front.parsers.harness import TOOLS, format_of, parse, specs, tokenizer
from octavo.front.parsers.base import Tool, choose
from octavo.front.parsers.formats.gemma import GEMMA4
from octavo.front.parsers.formats.harmony import HARMONY
from octavo.front.parsers.formats.mistral import MISTRAL
from octavo.front.parsers.formats.pythonic import PYTHONIC
from octavo.front.parsers.spec import Example

WIRED = [pytest.param(spec, id=spec.name) for spec in specs() if spec.grammar and not spec.fused]
EOS = 3
#: Variables of templates that leave no reasoning open.
CALM = {"enable_thinking": False, "thinking": False, "reasoning_effort": "no_think"}
NEEDED = {"properties": {"x": {"type": "integer"}}}


class Wrapped:
    """Our test tokenizer as llguidance wants it: bytes of every id, special ones behind 0xFF."""

    def __init__(self, vocabulary):
        pieces = [vocabulary.pieces[token] for token in range(vocabulary.id_bound)]
        self.tokens = [b"\xff" + piece if i in vocabulary.special_ids else piece for i, piece in enumerate(pieces)]
        self.eos_token_id, self.bos_token_id = EOS, None
        self.special_token_ids = sorted(vocabulary.special_ids)
        self._vocabulary = vocabulary

    def __call__(self, text):
        data = text.encode() if isinstance(text, str) else text
        return [4 + byte for byte in data]


@functools.cache
def matching(vocabulary) -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(Wrapped(vocabulary)))


def accepts(form, grammar: str, text: str) -> bool:
    """Whether the whole of ``text`` is allowed, and an end behind it."""
    matcher = LLMatcher(matching(form._vocabulary), grammar)
    assert not matcher.is_error(), matcher.get_error()
    ids = form._vocabulary.encode(text)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def calls_of(example: Example, spec) -> str:
    begin = min(example.wire.find(marker) for marker in spec.table["content"] if marker in example.wire)
    return example.wire[begin:]


@pytest.mark.parametrize("spec", WIRED)
@pytest.mark.parametrize("special", [True, False])
def test_a_familys_own_example_is_allowed(spec, special):
    form = format_of(spec, special)
    text = calls_of(spec.examples[0], spec)
    assert accepts(form, form.tool_grammar(TOOLS, required=True, named=None, parallel=True), text)
    assert not accepts(form, form.tool_grammar(TOOLS, required=True, named=None, parallel=False), text)
    assert not accepts(form, form.tool_grammar(TOOLS, required=True, named="now", parallel=True), text)
    assert not accepts(form, form.tool_grammar(TOOLS, required=True, named=None, parallel=True), "Hello")
    assert not accepts(form, form.tool_grammar(TOOLS, required=True, named=None, parallel=True), text[:-1])
    assert not accepts(
        form, form.tool_grammar(TOOLS, required=True, named=None, parallel=True), text.replace("get_weather", "get")
    )


@pytest.mark.parametrize("spec", WIRED)
def test_text_may_come_first_where_nothing_is_required(spec):
    form = format_of(spec)
    grammar = form.tool_grammar(TOOLS, required=False, named=None, parallel=True)
    text = calls_of(spec.examples[0], spec)
    to = next(to for marker, to in spec.table["content"].items() if text.startswith(marker))
    before = "\n " if getattr(to, "first", False) else "Ok.\n" if getattr(to, "line", False) else "Ok. "
    assert accepts(form, grammar, "Hello")
    assert accepts(form, grammar, text)
    assert accepts(form, grammar, before + text)
    assert not accepts(form, grammar, before + text.replace("get_weather", "get"))
    assert len(parse(form, form._vocabulary.encode(before + text), template_kwargs=CALM).calls) == 2


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("spec", [spec for spec in specs() if spec.grammar], ids=lambda spec: spec.name)
def test_no_spelling_of_a_call_gets_by_the_schema_as_text(spec, special):
    """No example keeps to these schemas: what the grammar allows of one, the parser takes for text."""
    form = format_of(spec, special)
    city = {"type": "object", "properties": {"city": {"const": "Ur"}}, "required": ["city"]}
    tools = [Tool("get_weather", city, True), Tool("now", {"type": "object", "required": ["x"], **NEEDED}, True)]
    grammar = form.tool_grammar(tools, required=False, named=None, parallel=True)
    if grammar is None:
        assert spec.fused
        assert not special
        return
    for example in spec.examples:
        text = example.wire if spec.fused or spec.think is None else example.wire.rpartition(spec.think.end)[2]
        told = parse(form, form._vocabulary.encode(text), tools=tools, template_kwargs=CALM)
        assert not told.calls or not accepts(form, grammar, text), text


@pytest.mark.parametrize("spec", WIRED)
def test_parameters_follow_the_schema(spec):
    form = format_of(spec)
    tools = [
        Tool(
            "get_weather",
            {
                "type": "object",
                "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"$ref": "#/$defs/days"}},
                "required": ["city"],
                "$defs": {"days": {"type": "integer", "minimum": 1}},
                "additionalProperties": False,
            },
        ),
        Tool("now", {}),
    ]
    grammar = form.tool_grammar(tools, required=True, named=None, parallel=True)
    text = calls_of(spec.examples[0], spec)
    assert accepts(form, grammar, text)
    assert accepts(form, grammar, text.replace("Paris", "Rome"))
    assert not accepts(form, grammar, text.replace("Paris", "Oslo"))
    assert not accepts(form, grammar, text.replace("3", "x"))
    told = parse(form, form._vocabulary.encode(text), tools=tools)
    assert json.loads(told.calls[0][1]) == {"city": "Paris", "days": 3}


def test_harmony_reasons_in_the_grammar():
    form = format_of(HARMONY)
    assert form.grammar_reasons
    grammar = form.tool_grammar(TOOLS, required=True, named=None, parallel=True)
    call = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}"
    think = "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant"
    for text in (call, think + call, f"{call}<|call|><|start|>assistant{call}"):
        assert accepts(form, grammar, text)
        assert parse(form, form._vocabulary.encode(text)).calls[0][:2] == ["now", "{}"]
    assert not accepts(form, grammar, "<|channel|>final<|message|>Hello")
    assert not accepts(form, grammar, think)


def test_harmony_speaks_and_calls_in_the_grammar():
    """Messages of any channel, calls by the schema; the answer itself may have a grammar of its own."""
    form, turn = format_of(HARMONY), "<|end|><|start|>assistant"
    assert format_of(HARMONY, False).tool_grammar(TOOLS, required=False, named=None, parallel=True) is None
    grammar = form.tool_grammar(TOOLS, required=False, named=None, parallel=True)
    think, say, final = (f"<|channel|>{name}<|message|>Hm" for name in ("analysis", "commentary", "final"))
    call = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}'
    for text in (final, think + turn + final, think + turn + say + turn + call, think + turn + think + turn + final):
        assert accepts(form, grammar, text)
    again = f"{call}<|call|><|start|>assistant{call}"
    assert accepts(form, grammar, again)
    single = form.tool_grammar(TOOLS, required=False, named=None, parallel=False)
    assert accepts(form, single, think + turn + call)
    assert not accepts(form, single, again)
    for wrong in (call.replace('"Paris"', "3"), call.replace("get_weather", "get"), call.replace("functions", "x")):
        assert not accepts(form, grammar, think + turn + wrong)
    asked = form.tool_grammar(TOOLS, required=False, named=None, parallel=True, answer="answer")
    asked += 'answer: %json {"type": "integer"}\n'
    assert accepts(form, asked, think + turn + call)
    assert accepts(form, asked, think + turn + final.replace("Hm", "5"))
    assert not accepts(form, asked, think + turn + final)
    assert not accepts(form, asked, think)


def test_every_format_can_be_made_to_call():
    for spec in specs():
        form = format_of(spec).forced
        grammar = form.tool_grammar(TOOLS, required=True, named=None, parallel=True)
        assert grammar is not None
        if form.spec.name == "json":
            text = '[{"name": "now", "parameters": {}}]'
            assert accepts(form, grammar, text)
            told = parse(form, form._vocabulary.encode(text), template_kwargs={"enable_thinking": False})
            assert [call[0] for call in told.calls] == ["now"] or form.has_reasoning


def test_no_grammar_where_a_format_has_none():
    for spec in specs():
        if spec.grammar is None:
            assert format_of(spec).tool_grammar(TOOLS, required=True, named=None, parallel=True) is None
        else:
            assert format_of(spec).tool_grammar([], required=True, named=None, parallel=True) is None


NESTED = {
    "type": "object",
    "properties": {
        "s": {"type": "string"},
        "n": {"type": ["integer", "null"]},
        "l": {"type": "array", "items": {"type": "number"}},
        "o": {
            "type": "object",
            "properties": {"a": {"type": "boolean"}, "b-c": {"enum": ["x", 1, None]}},
            "required": ["a"],
        },
        "t": {"$ref": "#/$defs/t"},
        "any": {},
    },
    "required": ["s"],
    "$defs": {"t": {"type": "object", "properties": {"k": {"$ref": "#/$defs/t"}, "v": {"type": "integer"}}}},
}


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize(
    ("spec", "call", "good", "bad"),
    [
        pytest.param(
            GEMMA4,
            "<|tool_call>call:f{%s}<tool_call|>",
            [
                ('s:"a, {b} ",any:{x:[null,"y",{}]}', {"s": "a, {b} ", "any": {"x": [None, "y", {}]}}),
                (
                    's:"",n:null,l:[1,2.5],o:{a:true,"b-c":"x"},t:{k:{k:{v:1}},v:2}',
                    {
                        "s": "",
                        "n": None,
                        "l": [1, 2.5],
                        "o": {"a": True, "b-c": "x"},
                        "t": {"k": {"k": {"v": 1}}, "v": 2},
                    },
                ),
            ],
            ["", "n:1", "s:x", 's:"",n:"3"', 's:"",l:["x"]', 's:"",o:{}'],
            id="gemma4",
        ),
        pytest.param(
            PYTHONIC,
            "[f(%s)]",
            [
                ('s="a\\n, ) \\" ", any={"x": [None]}', {"s": 'a\n, ) " ', "any": {"x": [None]}}),
                (
                    's="", n=3, l=[1, 2.5], o={"a": False, "b-c": None}, t={"k": {"v": 1}}',
                    {"s": "", "n": 3, "l": [1, 2.5], "o": {"a": False, "b-c": None}, "t": {"k": {"v": 1}}},
                ),
            ],
            ["", "n=1", "s=x", 's="", n=null', '"x"', 's="", o={}'],
            id="pythonic",
        ),
    ],
)
def test_other_notations_follow_the_schema(spec, call, good, bad, special):
    form, tools = format_of(spec, special), [Tool("f", NESTED)]
    grammar = form.tool_grammar(tools, required=True, named=None, parallel=True)

    def wire(arguments: str) -> str:
        return call % (arguments.replace('"', '<|"|>') if spec is GEMMA4 else arguments)

    for text, arguments in good:
        assert accepts(form, grammar, wire(text))
        told = parse(form, form._vocabulary.encode(wire(text)), tools=tools)
        assert [json.loads(one[1]) for one in told.calls] == [arguments]
    for text in bad:
        assert not accepts(form, grammar, wire(text)), text


def test_mistral_writes_calls_as_its_vocabulary_lets_it():
    call = {"new": "[TOOL_CALLS]now[ARGS]{}", "old": '[TOOL_CALLS][{"name": "now", "arguments": {}}]'}
    for kind, tokens in (("new", MISTRAL.tokens), ("old", ("[TOOL_CALLS]",))):
        form = choose(tokenizer(*tokens), None, None, "mistral")
        grammar = form.tool_grammar(TOOLS, required=True, named="now", parallel=True)
        for other, text in call.items():
            assert accepts(form, grammar, text) is (other == kind)
            told = parse(form, form._vocabulary.encode(text))
            assert [one[:2] for one in told.calls] == [["now", "{}"]]
            assert re.fullmatch("[0-9A-Za-z]{9}", told.calls[0][2])
