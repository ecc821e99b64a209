"""Every format of the registry: its examples, and the properties that all of them have."""

import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from front.parsers.harness import (
    TOOLS,
    Told,
    cases,
    every,
    format_of,
    news,
    parse,
    specs,
    tokenizer,
    with_city,
)
from octavo.front.parsers.events import Kind
from octavo.front.parsers.spec import CONTENT, Tags, Trim

CASES = [
    pytest.param(spec, example, id=f"{spec.name}-{i}")
    for spec, example, i in [(s, e, s.examples.index(e)) for s, e in cases()]
]
SPECS = [pytest.param(spec, id=spec.name) for spec in specs()]
CALLING = [pytest.param(spec, id=spec.name) for spec in specs() if spec.table and spec.examples[0].calls]
THINKING = [
    pytest.param(spec, id=spec.name) for spec in specs() if spec.think and not spec.fused and not spec.think.inline
]
#: Values that are hard on some notation.
VALUES = (
    *('a "b" \\ \n{c}, [d]', "é🙂日本 <x> </y>", "<think>", "\\n\\u00e9\\", "  x  ", "'''", '"', "{", "]", "a\tb"),
    "< | > ｜",
)  # fmt: skip


def test_every_format_has_examples():
    for spec in specs():
        assert spec.examples, spec.name
        if spec.table:
            assert any(example.calls for example in spec.examples), spec.name


@pytest.mark.parametrize("special", [True, False], ids=["ids", "text"])
@pytest.mark.parametrize(("spec", "example"), CASES)
def test_examples(spec, example, special):
    form = format_of(spec, special)
    ids = form._vocabulary.encode(example.wire)
    whole = parse(form, ids, stopped=example.stopped)
    assert whole.reasoning == example.reasoning
    assert whole.content == example.content
    assert [(name, json.loads(arguments)) for name, arguments, _ in whole.calls] == list(example.calls)
    assert whole.ended == list(range(len(whole.calls)))
    assert not whole.truncated
    assert parse(form, ids, every(ids), stopped=example.stopped).facts[:4] == whole.facts[:4]


def deep(count: int):
    """Decorates a property: it holds for ``count`` examples, and once more, slowly, for many."""

    def decorate(check):
        return pytest.mark.parametrize("count", [count, pytest.param(20 * count, marks=pytest.mark.slow, id="deep")])(
            check
        )

    return decorate


def holds(check, count: int) -> None:
    settings(max_examples=count, deadline=None)(given(st.data())(check))()


@deep(8)
@pytest.mark.parametrize(("spec", "example"), CASES)
def test_cuts_do_not_matter(spec, example, count):
    holds(lambda data: check_cuts(spec, example, data), count)


def check_cuts(spec, example, data):
    form = format_of(spec)
    ids = form._vocabulary.encode(example.wire)
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=30))
    assert parse(form, ids, cuts).facts == parse(form, ids).facts


@deep(25)
@pytest.mark.parametrize(("spec", "example"), CASES)
def test_an_answer_may_end_anywhere(spec, example, count):
    form = format_of(spec)
    ids = form._vocabulary.encode(example.wire)
    whole = parse(form, ids)
    for end in range(0, len(ids), max(len(ids) // count, 1)):
        for stopped in (False, True):
            told = parse(form, ids[:end], stopped=stopped)
            told.check()
            assert parse(form, ids[:end], every(ids[:end]), stopped=stopped).facts == told.facts
            assert len(told.calls) <= len(whole.calls)
        if form._vocabulary.decode(ids[:end]).endswith("\ufffd"):
            continue  # a character that was cut shows as another
        # What was told of a call stays true, whatever comes.
        for cut, full in zip(parse(form, ids[:end], stopped=False).calls, whole.calls, strict=False):
            assert full[0] == cut[0]
            assert full[1].startswith(cut[1])


@deep(15)
@pytest.mark.parametrize("spec", SPECS)
def test_garbage_is_read_without_a_fault(spec, count):
    holds(lambda data: check_garbage(spec, data), count)


def check_garbage(spec, data):
    form = format_of(spec, data.draw(st.booleans()))
    markers = sorted(spec.markers() | set(spec.tokens))
    words = st.sampled_from([*markers, *_SNIPPETS]) | st.sampled_from(markers).flatmap(
        lambda marker: st.integers(1, len(marker)).map(lambda size: marker[:size])
    )
    text = "".join(data.draw(st.lists(words, max_size=25)))
    ids = form._vocabulary.encode(text)
    told = parse(form, ids, stopped=False)
    told.check()
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=20))
    assert parse(form, ids, cuts, stopped=False).facts == told.facts
    assert parse(form, ids, every(ids), stopped=False).facts == told.facts


_SNIPPETS = (
    *("get_weather", "now", "city", "true", "3", "Ok. ", "f(a=1", "functions.now:0", 'name="now"', "\n", " ", "é"),
    *('"name": "now"', '{"name": "now", "arguments": ', '{"city": "x"}', "🙂", *"{}[]\"()',\\:=<>"),
)  # fmt: skip


@pytest.mark.parametrize("spec", CALLING)
@pytest.mark.parametrize("value", VALUES)
def test_a_value_is_told_as_it_is(spec, value):
    if any(isinstance(style, Tags) and style.trim is Trim.SPACE for style in spec.args.values()):
        value = value.strip()
    form = format_of(spec)
    # Ordinary tokens only, so that nothing in the value is a special token.
    before, after = spec.examples[0].wire.split("Paris")
    vocabulary = form._vocabulary
    middle = with_city(spec, value)[len(before) : -len(after)]
    ids = [*vocabulary.encode(before), *tokenizer().encode(middle), *vocabulary.encode(after)]
    expected = {**spec.examples[0].calls[0][1], "city": value}
    for cuts in ((), every(ids)):
        told = parse(form, ids, cuts)
        assert json.loads(told.calls[0][1]) == expected
        assert len(told.calls) == len(spec.examples[0].calls)


@pytest.mark.parametrize("spec", CALLING)
def test_look_alikes_of_special_tokens_are_prose(spec):
    form = format_of(spec)
    if any(marker not in spec.tokens for marker in spec.table.get(CONTENT, {})):
        pytest.skip("calls of this format begin with text")
    if spec.fused:
        pytest.skip("text of this format stands between special tokens")
    example = spec.examples[0]
    text = example.wire[example.wire.find(next(m for m in spec.table[CONTENT] if m in example.wire)) :]
    ids = tokenizer().encode(text)
    for cuts in ((), every(ids)):
        told = parse(form, ids, cuts, template_kwargs=dict.fromkeys(spec.think.kwargs if spec.think else (), False))
        assert not told.calls
        assert told.content == text


@pytest.mark.parametrize("spec", CALLING)
def test_without_tools_markup_is_content_and_with_none_it_is_dropped(spec):
    form = format_of(spec)
    example = spec.examples[0]
    ids = form._vocabulary.encode(example.wire)
    for cuts in ((), every(ids)):
        told = parse(form, ids, cuts, calls=False)
        assert not told.calls
        assert (told.reasoning, told.content) == (example.reasoning, example.content)
        told = parse(form, ids, cuts, tools=())
        assert not told.calls
        assert "get_weather" in told.content or spec.fused
        assert "Paris" in told.content or spec.fused


@pytest.mark.parametrize("spec", CALLING)
def test_many_calls(spec):
    form = format_of(spec)
    first = spec.table.get(CONTENT, {})
    if any(getattr(to, "first", False) for to in first.values()):
        pytest.skip("calls of this format are a whole answer")
    ids = form._vocabulary.encode(spec.examples[0].wire) * 50
    told = parse(form, ids)
    told.check()
    assert len(told.calls) == 50 * len(spec.examples[0].calls)


@pytest.mark.parametrize("spec", CALLING)
def test_the_work_is_constant_a_character(spec):
    """Function calls and characters told, one token at a time; four times the text is four times the work."""

    def work(size: int) -> tuple[int, int]:
        form = format_of(spec)
        vocabulary = form._vocabulary
        value = ("word <b> \\ 'x' " * (size // 15 + 1))[:size].rstrip()
        before, after = spec.examples[0].wire.split("Paris")
        middle = with_city(spec, value)[len(before) : -len(after)]
        ids = [*vocabulary.encode(before), *tokenizer().encode(middle), *vocabulary.encode(after)]
        pieces = news(vocabulary, ids, every(ids))
        stream = form.open(tools=TOOLS)
        count = told = longest = waiting = 0

        def profile(frame, event, argument):
            nonlocal count
            count += event in ("call", "c_call")

        begin = len(before)
        sys.setprofile(profile)
        try:
            all_events = [stream.feed(*piece) for piece in pieces]
        finally:
            sys.setprofile(None)
        at = 0
        for (text, _, _), events in zip(pieces, all_events, strict=True):
            at += len(text)
            inside = begin + 20 < at < begin + len(middle)
            told += sum(len(event.text) for event in events)
            if any(event.kind is Kind.ARGUMENTS for event in events):
                waiting = 0
            elif inside:
                waiting += len(text)
                longest = max(longest, waiting)
        assert longest <= max(map(len, spec.markers())) + 8, "more is held back than a marker"
        return count, told

    small, large = work(600), work(2400)
    assert large[0] < 5 * small[0]
    assert large[1] < 5 * small[1]


@pytest.mark.parametrize("spec", SPECS)
def test_no_more_of_prose_waits_than_a_marker(spec):
    form = format_of(spec)
    longest = max(map(len, spec.markers()))
    text = "Some prose with < and [ and { in it. " + " ".join(marker[:-1] + "?" for marker in sorted(spec.markers()))
    for reasoning in (True, False):
        stream = form.open(
            tools=TOOLS, template_kwargs=dict.fromkeys(spec.think.kwargs if spec.think else (), reasoning)
        )
        told = Told()
        for fed, char in enumerate("x" + text, 1):
            told.add(stream.feed(char))
            if not told.calls and not spec.fused:
                assert fed - len(told.content) - len(told.reasoning) <= longest + 2


@pytest.mark.parametrize("spec", THINKING)
def test_the_prompt_tells_whether_reasoning_is_open(spec):
    think = spec.think
    for special in (True, False):
        form = format_of(spec, special)
        encode = form._vocabulary.encode
        ids = encode("Hi there")
        turn = encode("<|turn|>")
        opened = [*turn, *encode(f"x{think.start}\n")]
        closed = [*turn, *encode(f"{think.start}\n\n{think.end}\n\n")]
        for cuts in ((), every(ids)):
            assert parse(form, ids, cuts, prompt_ids=opened).reasoning == "Hi there"
            assert parse(form, ids, cuts, prompt_ids=closed).content == "Hi there"
            # A turn before the last says nothing.
            default = parse(form, ids, cuts).facts
            assert parse(form, ids, cuts, prompt_ids=[*opened, *turn]).facts == default


@pytest.mark.parametrize("spec", THINKING)
def test_reasoning_tokens_are_counted_by_state(spec):
    form = format_of(spec)
    encode = form._vocabulary.encode
    inner = encode("some words")
    ids = [*encode(spec.think.start), *inner, *encode(spec.think.end), *encode("more")]
    if spec.think.start not in spec.tokens or spec.think.end not in spec.tokens:
        pytest.skip("its markers are text")
    for cuts in ((), every(ids), (3,)):
        stream = form.open(tools=TOOLS, template_kwargs=dict.fromkeys(spec.think.kwargs, True))
        for piece in news(form._vocabulary, ids, cuts):
            stream.feed(*piece)
        stream.finish()
        assert stream.reasoning_tokens == len(inner)
