"""The other kinds of grammars, and what a request's follower makes of them."""

import json
import random
import re
from functools import lru_cache
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.grammar.base import allows
from octavo.core.grammar.cuts import AHEAD, KEPT, Cuts, Habits
from octavo.core.grammar.guidance import Guidance
from octavo.core.grammar.manager import Follower
from octavo.core.grammar.reasoning import Reasoning
from octavo.errors import BadRequest
from octavo.testing.served import PATIENCE
from octavo.wire.request import GrammarRef
from octavo.wire.vocabulary import Vocabulary
from tests.unit.core.grammar.support import EOS, ids, mask, opened, says, told_late

THINK_END = 260


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """However long this machine takes, what is forced is told soon enough."""
    monkeypatch.setattr("octavo.core.grammar.cost.DEAR", PATIENCE)


@pytest.mark.parametrize(
    ("regex", "texts"),
    [
        ("a+b", ["ab", "aaab", "b", "abx"]),
        ("^a$", ["a", "aa", "^a$"]),
        (r"\d{2}/\d", ["12/3", "1/3", "٣٣/٣"]),
        (r"[^\n]*", ["", "é🙂 ", "a\nb"]),
        (r"(?i)yes|no", ["YES", "no", "yesno"]),
        (r"\w+@\w+\.com", ["a@b.com", "é@b.com", "@b.com"]),
        (r"a.c", ["abc", "a\nc", "a🙂c", "ac"]),
        (r"a\/b\"", ['a/b"', "a\\/b"]),
    ],
)
def test_a_regex_means_what_it_means_in_python(regex, texts):
    grammar = opened("regex", regex)
    assert [says(grammar, text) for text in texts] == [re.fullmatch(regex, text) is not None for text in texts]


@pytest.mark.parametrize("regex", ["(a", "[", "a(?=b)", r"(a)\1", r"\ba", "(" * 200 + ")" * 200, "a{3,1}"])
def test_a_regex_that_is_none_is_refused(regex):
    with pytest.raises(BadRequest):
        opened("regex", regex)


def test_choices():
    texts = ["yes", "no", "nope", "é🙂", 'a"b\\', "a\nb\t", "\x01\x7f", " ", "[a]", "\u2028"]
    grammar = opened("choice", texts)
    assert all(says(grammar, text) for text in texts)
    assert not any(says(grammar, text) for text in ("", "ye", "yesno", "a", "\x01"))
    many = opened("choice", [f"choice number {i}" for i in range(10_000)])
    assert says(many, "choice number 9999")
    assert not says(many, "choice number 10000")


def test_json_objects():
    grammar = opened("json_object", "")
    assert [says(grammar, text) for text in ("{}", '{"a": [1, {"b": null}]}', "[]", "1", "{", '{"a"}')] == [
        True,
        True,
    ] + [False] * 4
    assert not says(opened("json_object", "", whitespace=""), '{"a": 1}')


GBNF = 'root ::= "a" item{2}\nitem ::= [0-9]+ "," | "x"\n# a comment'
LARK = 'start: "a" item item\nitem: NUM "," | "x"\nNUM: /[0-9]+/'


@pytest.mark.parametrize("text", [GBNF, LARK, "%llguidance {}\n" + LARK])
def test_lark_and_gbnf_are_told_apart(text):
    grammar = opened("grammar", text)
    assert [says(grammar, text) for text in ("a12,x", "axx", "ax", "axxx", "a1x")] == [True, True, False, False, False]


def test_schemas_in_a_grammar_are_checked_too():
    grammar = opened("grammar", 'start: "<" inner ">"\ninner: %json {"type": "integer"}')
    assert says(grammar, "<12>")
    with pytest.raises(BadRequest, match="'uniqueItems'"):
        opened("grammar", 'start: "<" inner ">"\ninner: %json {"uniqueItems": true}')
    with pytest.raises(BadRequest, match="no JSON"):
        opened("lark", "start: %json {")


@pytest.mark.parametrize(
    "text",
    [
        "start: nope",
        'root ::= "a',
        "start: (",
        '%llguidance {"no_forcing": false}\nstart: "a"',
        "x",
        "start: " + "(" * 200,
    ],
)
def test_a_grammar_that_is_none_is_refused(text):
    with pytest.raises(BadRequest) as error:
        opened("grammar", text)
    assert len(error.value.message) < 500


def test_an_unknown_kind_is_refused():
    with pytest.raises(BadRequest, match="not known"):
        opened("yaml", "a")


def tagged(value):
    return opened("structural_tag", value)


OLD = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<f=a>", "schema": {"type": "integer"}, "end": "</f>"},
        {"begin": "<f=b>", "schema": {"type": "boolean"}, "end": "</f>"},
    ],
    "triggers": ["<f="],
}


def test_structures_with_triggers():
    grammar = tagged(OLD)
    for text in ("", "free text", "x<f=a>12</f>", "<f=b>true</f> and <f=a>1</f>\nend", "a < b", "<f"):
        assert says(grammar, text), text
    for text in ("<f=a>x</f>", "<f=c>1</f>", "<f=a>12", "<f="):
        assert not says(grammar, text), text


def test_formats():
    integer = {"type": "json_schema", "json_schema": {"type": "integer"}}
    tag = {"type": "tag", "begin": "<a>", "content": integer, "end": "</a>"}
    free = {"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": "</t>"}
    first = {"at_least_one": True, "stop_after_first": True}
    cases = [
        (tag, ["<a>1</a>"], ["1", "<a>1"]),
        ({"type": "const_string", "value": 'x"\n'}, ['x"\n'], ["x"]),
        ({"type": "regex", "pattern": "a/b?"}, ["a/", "a/b"], ["a"]),
        ({"type": "any_text"}, ["", "a\nb"], []),
        ({"type": "sequence", "elements": [tag, {"type": "const_string", "value": "!"}]}, ["<a>1</a>!"], ["<a>1</a>"]),
        ({"type": "or", "elements": [tag, {"type": "const_string", "value": "!"}]}, ["<a>1</a>", "!"], ["<a>1</a>!"]),
        (
            {"type": "sequence", "elements": [free, integer]},
            ["<t>free < text</t>5", "<t></t>5"],
            ["<t>5", "<t></t></t>5"],
        ),
        (
            {"type": "triggered_tags", "triggers": ["<a"], "tags": [tag], **first},
            ["<a>1</a>"],
            ["", "x<a>1</a>", "<a>1</a>x"],
        ),
        (
            {"type": "tags_with_separator", "tags": [tag], "separator": ", "},
            ["", "<a>1</a>", "<a>1</a>, <a>2</a>"],
            ["<a>1</a><a>2</a>", "<a>1</a>, "],
        ),
    ]
    for value, right, wrong in cases:
        grammar = tagged({"type": "structural_tag", "format": value})
        assert all(says(grammar, text) for text in right), (value, [text for text in right if not says(grammar, text)])
        assert not any(says(grammar, text) for text in wrong), (value, [text for text in wrong if says(grammar, text)])


@pytest.mark.parametrize(
    "value",
    [
        [],
        {},
        {"format": {"type": "odd"}},
        {"format": {"type": "sequence", "elements": []}},
        {"structures": [{"begin": "<x>", "schema": {}, "end": ""}], "triggers": ["<y"]},
        {"structures": [{"begin": "<x>", "schema": {"not": {}}, "end": ""}], "triggers": ["<x"]},
        {"structures": [], "triggers": ["<x"]},
        {"structures": [{"begin": "<x>", "schema": {}, "end": "a"}], "triggers": []},
        {"format": {"type": "tag", "begin": "<x>", "content": {"type": "any_text"}}},
        {"format": {"type": "triggered_tags", "triggers": ["<"], "tags": [{"type": "tag"}]}},
    ],
)
def test_structural_tags_that_are_wrong(value):
    with pytest.raises(BadRequest):
        tagged(value)


# What a follower does.

#: Bytes, longer tokens, the end of an answer and two other special tokens.
PIECES = (*(bytes([byte]) for byte in range(256)), b"<eos>", b'{"', b'":', b"name", b"</think>", b"<|x|>")
VOCABULARY = Vocabulary(len(PIECES), PIECES, (EOS, THINK_END, 261), (EOS,))
WORDS = 10


@lru_cache(1)
def bound() -> Guidance:
    return Guidance(VOCABULARY, 300)


def follow(kind="regex", text="ab", after=(), stops=(EOS,), **more):
    engine = bound()
    text = text if isinstance(text, str) else json.dumps(text)
    ref = GrammarRef(kind, text, after, **more)
    return Follower(engine.build(engine.prepare(ref)).open(), Reasoning(ref), stops, (EOS,))


def line(follower) -> list[int]:
    bits = np.zeros(WORDS, np.int32)
    follower.fill(bits)
    return [token for token in range(300) if allows(bits, token)]


def test_when_complete_only_ends_are_allowed():
    follower = follow("regex", "ab", stops=(EOS, 261, 7))
    assert line(follower) == [97]
    assert follower.accept(97)
    assert line(follower) == [98]
    assert follower.accept(98)
    assert line(follower) == sorted([EOS, 261, 7])
    assert not follower.accept(97)
    assert follower.accept(EOS)  # of a request that ignores it
    assert line(follower) == sorted([EOS, 261, 7])
    assert follower.accept(EOS)


def test_optional_ends_are_allowed_beside_text():
    follower = follow("regex", "a*", stops=(EOS, 261))
    assert line(follower) == [97, EOS, 261]


def test_special_tokens_are_no_text():
    follower = follow("regex", "(.|\n)*")
    assert not {THINK_END, 261} & set(line(follower))
    by_id = follow("lark", 'start: <[261]> "a"')
    assert line(by_id) == [261]
    assert by_id.drafts(4) == [261]
    assert by_id.accept(261)
    assert line(by_id) == [97]


def test_a_grammar_bites_behind_reasoning_also_within_a_window():
    follower = follow("regex", "ab", after=(10, THINK_END))
    assert len(line(follower)) == 300
    assert follower.drafts(4) == []
    window = np.zeros((5, WORDS), np.int32)
    follower.fill_window(window, [5, 10, THINK_END, 97])
    lines = [[token for token in range(300) if allows(row, token)] for row in window]
    assert [len(one) for one in lines[:3]] == [300] * 3
    assert lines[3:] == [[97], [98]]
    for token in (10, 5, 10, THINK_END):
        assert follower.accept(token)
    assert line(follower) == [97]


def test_a_window_leaves_the_follower_where_it_is():
    follower = follow("regex", "abc*")
    for _ in range(3):
        window = np.zeros((5, WORDS), np.int32)
        follower.fill_window(window, [97, 98, 99, 99])
        assert [ids_of(row) for row in window] == [[97], [98], [99, EOS], [99, EOS], [99, EOS]]
    assert line(follower) == [97]


def test_a_draft_that_the_grammar_refuses_or_an_end_ends_the_window():
    follower = follow("regex", "abc*")
    window = np.zeros((4, WORDS), np.int32)
    follower.fill_window(window, [97, 99, 98])
    assert ids_of(window[0]) == [97]
    assert ids_of(window[1]) == [98]
    assert (window[2:] == -1).all()
    follower.accept(97)
    follower.accept(98)
    window = np.zeros((3, WORDS), np.int32)
    follower.fill_window(window, [EOS, 97])
    assert ids_of(window[0]) == [99, EOS]
    assert (window[1:] == -1).all()
    assert line(follower) == [99, EOS]


def test_an_end_that_the_request_ignores_does_not_end_the_window():
    follower = follow("regex", "a", stops=(261,))
    window = np.zeros((4, WORDS), np.int32)
    follower.fill_window(window, [97, EOS, EOS])
    assert [ids_of(row) for row in window] == [[97], [EOS, 261], [EOS, 261], [EOS, 261]]
    assert line(follower) == [97]


def ids_of(row) -> list[int]:
    return [token for token in range(300) if allows(row, token)]


def test_forced_text_is_drafted_in_long_tokens_and_choices_are_left_free():
    follower = follow(
        "json_schema", {"type": "object", "properties": {"name": {"const": 1}}, "required": ["name"]}, whitespace=""
    )
    assert follower.drafts(8) == [257, 259, 258]  # {" name ": and not 1, since what reaches the end may be longer
    assert follower.drafts(2) == [257, 259]
    assert set(line(follower)) == {ord("{"), 257}
    for token in map(ord, '{"na'):
        assert follower.accept(token)
    assert follower.drafts(3) == [ord("m"), ord("e"), 258]


NAMING = [
    'start: <[261]> "name" <[260]> /[ab]+/',
    'start: "a" <[261]> "a:" <[260]>',
    "start: (<[261]> /[ab]{1,3}/ <[260]>)*",
    'start: "ab" ("c" <[261]> | "d") "name"',
    'start: %json {"const": {"name": [true, "abc"]}}',
]


@settings(max_examples=20)
@given(st.sampled_from(NAMING), st.randoms(use_true_random=False))
def test_looking_ahead_changes_nothing(text, random):
    """Whatever is drafted and looked at in windows, the masks are those of somebody who never did."""
    follower, said = follow("lark", text), []
    for _ in range(12):
        drafts, ahead = [], follow("lark", text)
        for token in said:
            ahead.accept(token)
        lines = [line(ahead)]
        if random.random() < 0.7:
            drafts = follower.drafts(random.randint(1, 6))
        for token in drafts:
            assert token in lines[-1]
            ahead.accept(token)
            lines.append(line(ahead))
        while len(drafts) < 4 and random.random() < 0.5:
            drafts.append(random.choice(lines[-1]) if random.random() < 0.8 else 64)
            if drafts[-1] not in lines[-1] or drafts[-1] == EOS:
                break
            ahead.accept(drafts[-1])
            lines.append(line(ahead))
        window = np.zeros((len(drafts) + 1, WORDS), np.int32)
        follower.fill_window(window, drafts)
        assert [ids_of(row) for row in window[: len(lines)]] == lines
        token = random.choice(lines[0])
        assert follower.accept(token)
        said.append(token)


def test_text_is_cut_into_the_longest_tokens():
    cut = Habits(Cuts(PIECES, frozenset({EOS, THINK_END, 261}))).cut
    assert cut(b'{"name":x', 10) == [257, 259, 258]
    assert cut(b"</think>x", 3) == [ord("<"), ord("/"), ord("t")]
    assert cut(b"\xff[261]ab", 5) == [261, 97]
    assert cut(b"", 5) == []
    assert Habits(Cuts((b"a",), frozenset())).cut(b"ab", 5) == [0]


def test_text_is_cut_as_it_was_said_before():
    habits = Habits(Cuts(PIECES, frozenset({EOS, THINK_END, 261})))
    letters = [*b"name"]
    habits.learn(b'{"name":', [257, *letters, 258])
    assert habits.cut(b'{"name":', 9) == [257, *letters, 258]  # what was said at the end is no guess any more
    assert habits.cut(b'name":', 9) == [*letters, 258]  # the way there does not matter
    assert habits.cut(b'{"name":x', 9) == [257, 259, 258]  # what comes behind it does
    habits.learn(b'{"name":', [257, 259, 258])
    assert habits.cut(b'{"name":', 9) == [257, 259, 258]  # the newest counts
    habits.learn(b'{"na', [257, 259])
    assert habits.cut(b'{"na', 9) == [257]  # a token went beyond the end, so that nothing can be said of it
    long = b"x" * 2 * AHEAD
    habits.learn(long, [*long])
    assert habits.cut(long, 99) == [*long]


def test_habits_are_kept_within_bounds():
    habits = Habits(Cuts(PIECES, frozenset({EOS})))
    for number in range(2 * KEPT):
        text = b"%06d" % number
        habits.learn(text, [*text])
        assert len(habits._said) <= KEPT
    assert habits.cut(text, 9) == [*text]


def test_what_is_said_again_costs_no_other_habit():
    habits = Habits(Cuts(PIECES, frozenset({EOS})))
    texts = [b"%04d" % number for number in range(KEPT)]
    for text in texts:
        habits.learn(text, [text[0]])
    for text in texts:
        habits.learn(text, [text[0]])
        assert len(habits._said) == KEPT


NAMED = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def test_answers_teach_drafts_how_the_model_cuts_and_guesses_do_not():
    template = bound().build(bound().prepare(GrammarRef("json_schema", json.dumps(NAMED), whitespace="")))
    said = [*b'{"name":"']
    for answer in range(3):
        follower = Follower(template.open(), Reasoning(GrammarRef("json_schema", "")), (EOS,), (EOS,))
        drafts = follower.drafts(16)
        assert drafts == (said if answer else [257, 259, 258])
        window = np.zeros((len(drafts) + 1, WORDS), np.int32)
        follower.fill_window(window, drafts)  # looks ahead, and takes it back
        assert all(follower.accept(token) for token in said)
        assert follower.drafts(16) == []


def test_what_is_told_late_twice_is_asked_of_no_answer_again(monkeypatch):
    template = bound().build(bound().prepare(GrammarRef("lark", NAMING[0])))
    told_late(monkeypatch, "guidance")
    answers = [Follower(template.open(), Reasoning(GrammarRef("lark", "")), (EOS,), (EOS,)) for _ in range(3)]
    assert [one.drafts(1) for one in answers] == [[261], [261], []]
    for follower in answers:
        for token in (261, *b"name"):
            assert line(follower) == ([token, 259] if token == ord("n") else [token])
            assert follower.accept(token)
        assert follower.drafts(1) == []
        assert line(follower) == [260]


def test_a_grammar_that_breaks_in_a_window_ends_its_own_request():
    def fill(bits):
        raise RuntimeError("too complex")

    follower = Follower(
        SimpleNamespace(fill=fill, accept=lambda token: True), Reasoning(GrammarRef("regex", "")), (EOS,), (EOS,)
    )
    window = np.zeros((2, WORDS), np.int32)
    follower.fill_window(window, [97])
    assert (window == -1).all()
    assert not follower.accept(97)


def test_each_answer_has_a_state_of_its_own():
    engine = Guidance(VOCABULARY, 300)
    template = engine.build(engine.prepare(GrammarRef("regex", "ab")))
    one, two = template.open(), template.open()
    assert one.accept(97)
    assert two.accept(97)
    assert not two.accept(97)
    assert one.accept(98)
    one.rollback(2)
    assert ids(mask(one)) == [97]


def test_what_is_followed_aside_is_what_is_followed_in_place():
    draw = random.Random(0)
    for kind, text in (
        ("regex", "(ab|ba)*c{2,5}"),
        ("lark", 'start: e\ne: e e | "a" e | /[a-c]+/'),
        ("json_schema", '{"type": "object", "properties": {"a": {"type": "integer"}}}'),
    ):
        one, other = opened(kind, text), opened(kind, text)
        for _ in range(40):
            bits, aside = mask(one), np.zeros(9, np.int32)
            other.fill_aside(aside)
            assert ids(bits) == ids(aside)
            token = draw.choice(ids(bits))
            assert one.accept(token)
            assert other.accept_aside(token)
        assert not other.accept_aside(next(token for token in range(257) if token not in ids(mask(one))))
