"""Reasoning before a grammar: what opens and ends it, and its budget."""

import numpy as np
import pytest

from octavo.core.grammar.base import allows
from octavo.core.grammar.manager import Follower
from octavo.core.grammar.reasoning import Free, Reasoning
from octavo.wire.request import GrammarRef

OPEN, END, ENDS = 10, 11, (11, 12, 11, 13)


class Only:
    """A grammar of one token, over and over."""

    def __init__(self, token):
        self.token, self.count = token, 0

    def accept(self, token):
        self.count += 1
        return token == self.token

    def fill(self, bits):
        bits[self.token >> 5] |= 1 << (self.token & 31)

    def rollback(self, count):
        self.count -= count

    def forced(self, limit):
        return [self.token] * limit


def follower(grammar=None, **ref):
    return Follower(grammar or Free(), Reasoning(GrammarRef("free", "", **ref)))


def allowed(one):
    bits = np.zeros(2, np.int32)
    one.fill(bits)
    return [token for token in range(64) if allows(bits, token)]


def test_a_budget_forces_the_end():
    one = follower(after=(END,), budget=2)
    for token in (1, 2):
        assert len(allowed(one)) == 64
        assert one.accept(token)
    assert allowed(one) == [END]
    assert one.drafts(5) == [END]
    assert one.accept(END)
    assert len(allowed(one)) == 64


def test_no_reasoning_at_all():
    one = follower(after=(END,), budget=0)
    assert allowed(one) == [END]


def test_a_model_that_ends_in_time_is_left_alone():
    one = follower(after=(END,), budget=2)
    for token in (1, END, 1, 2, 3, 4):
        assert len(allowed(one)) == 64
        assert one.accept(token)


@pytest.mark.parametrize(
    ("said", "rest"),
    [
        ((1, 2, 3), ENDS),
        ((1, 2, 11), ENDS[1:]),
        ((1, 11, 12), ENDS[2:]),
        ((11, 12, 11), ENDS[3:]),
        ((11, 12, 1), ENDS),
        ((12, 11, 11), ENDS[1:]),
    ],
)
def test_an_end_of_several_tokens_goes_on_where_the_model_is(said, rest):
    one = follower(after=ENDS, budget=3)
    for token in said:
        assert one.accept(token)
    for token in rest:
        assert allowed(one) == [token]
        assert one.accept(token)
    assert len(allowed(one)) == 64


def test_the_marker_that_begins_it_is_not_counted():
    one = follower(after=(END,), opens=(OPEN,), budget=1)
    for token in (OPEN, 1):
        assert len(allowed(one)) == 64
        assert one.accept(token)
    assert allowed(one) == [END]


@pytest.mark.parametrize("open", [True, False])
def test_a_marker_over_and_over_is_counted(open):
    one = follower(after=(END,), opens=(OPEN, 9), open=open, budget=2)
    for token in (OPEN, OPEN, 9):
        assert len(allowed(one)) == 64
        assert one.accept(token)
    assert allowed(one) == [END]


def test_reasoning_may_open_with_the_first_token_only():
    one = follower(Only(5), after=(END,), opens=(OPEN,), open=False, budget=1)
    assert allowed(one) == [5, OPEN]
    assert one.drafts(3) == []
    for token in (OPEN, 1):
        assert one.accept(token)
    assert allowed(one) == [END]
    assert one.accept(END)
    assert allowed(one) == [5]
    plain = follower(Only(5), after=(END,), opens=(OPEN,), open=False)
    assert plain.accept(5)
    assert allowed(plain) == [5]
    assert not plain.accept(OPEN)


def test_a_window_over_the_end_of_reasoning():
    grammar = Only(5)
    one = follower(grammar, after=(END,), budget=1)
    bits = np.zeros((5, 2), np.int32)
    one.fill_window(bits, [1, END, 5, 5])
    lines = [[token for token in range(64) if allows(line, token)] for line in bits]
    assert list(map(len, lines)) == [64, 1, 1, 1, 1]
    assert lines[1:] == [[END], [5], [5], [5]]
    assert grammar.count == 0
    assert len(allowed(one)) == 64
    bits[:] = 0
    one.fill_window(bits, [1, 2, 3, 4])
    assert [token for token in range(64) if allows(bits[1], token)] == [END]
    assert (bits[2:] == -1).all()


class Panic(BaseException):
    """As a library in another language raises it."""


@pytest.mark.parametrize("where", ["accept", "fill", "rollback", "forced"])
@pytest.mark.parametrize("error", [RuntimeError, Panic])
def test_a_grammar_engine_that_raises_ends_its_own_request_only(where, error):
    def broken(*_):
        raise error("on fire")

    grammar = Only(5)
    setattr(grammar, where, broken)
    one = follower(grammar)
    drafts = one.drafts(2) or [5, 5]
    bits = np.zeros((3, 2), np.int32)
    one.fill_window(bits, drafts)
    assert bits.any(1).all()
    assert not one.accept(5)
