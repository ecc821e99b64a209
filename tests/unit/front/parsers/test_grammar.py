"""Grammars of tool calls: they allow what the parser reads, and nothing else."""

import json

import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from front.parsers.harness import TOOLS, format_of, parse, specs
from octavo.front.parsers.base import Tool
from octavo.front.parsers.formats.harmony import HARMONY
from octavo.front.parsers.spec import Example

WIRED = [pytest.param(spec, id=spec.name) for spec in specs() if spec.grammar and not spec.fused]
EOS = 3


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


def accepts(form, grammar: str, text: str) -> bool:
    """Whether the whole of ``text`` is allowed, and an end behind it."""
    matcher = LLMatcher(LLTokenizer(TokenizerWrapper(Wrapped(form._vocabulary))), grammar)
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
    if grammar is None:
        return  # calls begin with ordinary text
    text = calls_of(spec.examples[0], spec)
    assert accepts(form, grammar, "Hello")
    assert accepts(form, grammar, "Ok. " + text)
    assert not accepts(form, grammar, "Ok. " + text.replace("get_weather", "get"))


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
    assert form.grammar_after == ()
    grammar = form.tool_grammar(TOOLS, required=True, named=None, parallel=True)
    call = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}"
    think = "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant"
    for text in (call, think + call, f"{call}<|call|><|start|>assistant{call}"):
        assert accepts(form, grammar, text)
        assert parse(form, form._vocabulary.encode(text)).calls[0][:2] == ["now", "{}"]
    assert not accepts(form, grammar, "<|channel|>final<|message|>Hello")
    assert not accepts(form, grammar, think)
    assert form.tool_grammar(TOOLS, required=False, named=None, parallel=True) is None


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
