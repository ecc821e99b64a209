"""Answers and groups: what a caller sees of replies, in every output kind, however late it looks."""

import itertools
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from front.support import small
from front.test_logprobs import arrays
from octavo.errors import BadRequest, EngineDead, NotFound, Overloaded, RequestFailed
from octavo.front import fanout
from octavo.front.collect import Answer
from octavo.front.fanout import Desk, Group
from octavo.params import RequestOutputKind, SamplingParams
from octavo.wire.arrays import ints
from octavo.wire.reply import Admitted, FinishReason, Refused, RequestDelta, StepReply

DELTA, CUMULATIVE, FINAL = RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE, RequestOutputKind.FINAL_ONLY
ids_of = small().encode


def end(reason=FinishReason.LENGTH, stop=None, handle=0):
    return [RequestDelta(handle, reason, stop)]


def answer(kind=DELTA, prompt=(4,), **params):
    return Answer(0, SamplingParams(output_kind=kind, max_tokens=100, **params), small(), list(prompt))


def push_all(one, tokens, last=FinishReason.LENGTH, size=1):
    """Push tokens ``size`` at a time; the tokens until the answer ended."""
    for at in range(0, len(tokens), size):
        final = at + size >= len(tokens)
        if one.push(tokens[at : at + size], end(last) if final else ()) or one.finished:
            return


@given(st.text("ab é🙂", max_size=20), st.lists(st.booleans(), min_size=60, max_size=60), st.integers(1, 4))
def test_deltas_add_up_whenever_they_are_taken(text, looks, size):
    tokens = [4 + byte for byte in text.encode()] + [60]
    quick, whole = answer(DELTA), answer(FINAL)
    push_all(whole, tokens, size=size)
    parts = []
    for i, at in enumerate(range(0, len(tokens), size)):
        quick.push(tokens[at : at + size], end() if at + size >= len(tokens) else ())
        if looks[i]:
            parts.append(quick.take())
    parts.append(quick.take())
    parts = [part for part in parts if part is not None]
    final = whole.take()
    assert "".join(part.text for part in parts) == final.text == small().decode(tokens)
    assert list(itertools.chain(*(part.token_ids for part in parts))) == final.token_ids == tokens
    assert [part.finish_reason for part in parts[:-1]] == [None] * (len(parts) - 1)
    assert parts[-1].finish_reason == final.finish_reason == "length"


def test_cumulative_outputs_grow_and_do_not_change_afterwards():
    one = answer(CUMULATIVE)
    one.push(ids_of("ab"))
    first = one.take()
    assert one.take() is None
    one.push(ids_of("c"), end())
    assert (first.text, one.take().text) == ("ab", "abc")
    assert first.token_ids == ids_of("ab")


def test_final_only_says_nothing_before_the_end():
    one = answer(FINAL)
    one.push(ids_of("ab"))
    assert one.take() is None
    one.push([], end(FinishReason.ABORT))
    assert (one.take().text, one.take()) == ("ab", None)


@pytest.mark.parametrize(("include", "text"), [(False, "the"), (True, "the<|end|>")])
def test_the_token_that_stops_is_no_text_unless_asked(include, text):
    one = answer(FINAL, skip_special_tokens=False, include_stop_str_in_output=include)
    one.push([*ids_of("the"), 1], end(FinishReason.STOP))
    output = one.take()
    assert (output.text, output.token_ids[-1], output.finish_reason, output.stop_reason) == (text, 1, "stop", None)


def test_a_stop_token_is_the_reason():
    one = answer(FINAL)
    one.push([70, 71], end(FinishReason.STOP, 71))
    assert one.take().stop_reason == 71


@given(st.integers(1, 6), st.booleans())
def test_a_stop_string_cuts_text_tokens_and_logprobs_alike_in_any_step_size(size, include):
    one = answer(FINAL, stop=["bc"], logprobs=0, include_stop_str_in_output=include)
    tokens = ids_of("xabcdefg")
    told = []
    for at in range(0, len(tokens), size):
        part = tokens[at : at + size]
        final = at + size >= len(tokens)
        deltas = [RequestDelta(0, logprobs=arrays([[(token, -1.0)] for token in part])), *(end() if final else ())]
        told.append(one.push(part, deltas))
        if one.finished:
            break
    output = one.take()
    assert output.text == ("xabc" if include else "xa")
    assert output.token_ids == ids_of("xabc")
    assert (output.finish_reason, output.stop_reason) == ("stop", "bc")
    assert (len(output.logprobs), output.cumulative_logprob) == (4, -4.0)
    # The core must be told, unless it has said itself that this is the end.
    assert told[-1] is not final


@given(st.integers(1, 5))
def test_stop_strings_wait_for_min_tokens(size):
    one = answer(FINAL, stop=["b"], min_tokens=3)
    push_all(one, ids_of("abababab"), size=size)
    assert one.take().text == "aba"


def test_held_back_text_is_told_at_the_end():
    one = answer(DELTA, stop=["abX"])
    one.push(ids_of("zab"))
    assert one.take().text == "z"
    one.push([], end(FinishReason.ABORT))
    assert one.take().text == "ab"


# -- groups and the desk --


def group(desk, kind=FINAL, n=1, **params):
    wanted = SamplingParams(n=n, output_kind=kind, max_tokens=100, **params)
    one = Group("r", "p", [4, 5, 6], wanted, small(), desk.handles(n), arrival=0.0)
    desk.open(one)
    return one


def reply(tokens=(), deltas=(), answers=()):
    """``tokens``: (handle, ids) pairs; a handle may come more than once."""
    handles, counts = ints([handle for handle, _ in tokens]), ints([len(ids) for _, ids in tokens])
    flat = ints([token for _, ids in tokens for token in ids])
    return StepReply(0, handles, counts, flat, list(deltas), list(answers))


def test_a_reply_goes_to_whom_it_belongs():
    desk = Desk()
    first, second = group(desk), group(desk)
    woken = []
    first.wake, second.wake = (lambda: woken.append(1)), (lambda: woken.append(2))
    desk.read(reply(answers=[Admitted(0), Admitted(1)]))
    assert (first.admitted, second.admitted, woken) == (True, True, [1, 2])
    desk.read(reply([(1, ids_of("b")), (0, ids_of("a")), (1, ids_of("c"))], [*end(handle=1)]))
    assert (second.take().outputs[0].text, second.finished, first.finished) == ("bc", True, False)
    desk.read(reply([(1, ids_of("late"))], [*end(handle=1)]))
    assert len(desk) == 1
    desk.read(reply([(0, ids_of("d"))], [RequestDelta(0, cached=2), *end(handle=0)]))
    output = first.take()
    assert (output.outputs[0].text, output.num_cached_tokens, output.finished) == ("ad", 2, True)
    assert len(desk) == 0


def test_several_answers_come_together_at_the_end():
    desk = Desk()
    one = group(desk, n=3)
    for handle in (2, 0):
        desk.read(reply([(handle, ids_of(str(handle)))], end(handle=handle)))
        assert one.take() is None
    desk.read(reply([(1, ids_of("1"))], end(handle=1)))
    output = one.take()
    assert [(answer.index, answer.text) for answer in output.outputs] == [(0, "0"), (1, "1"), (2, "2")]


def test_deltas_of_several_answers_are_told_apart():
    desk = Desk()
    one = group(desk, DELTA, n=2)
    desk.read(reply([(1, ids_of("x"))]))
    assert [(answer.index, answer.text) for answer in one.take().outputs] == [(1, "x")]
    desk.read(reply([(0, ids_of("y")), (1, ids_of("z"))], end(handle=1)))
    output = one.take()
    assert [(answer.index, answer.text, answer.finish_reason) for answer in output.outputs] == [
        (0, "y", None),
        (1, "z", "length"),
    ]
    assert not output.finished


def test_a_stop_string_makes_the_desk_name_the_handle():
    desk = Desk()
    one = group(desk, stop=["b"])
    assert desk.read(reply([(0, ids_of("abc"))])) == [0]
    assert (one.take().outputs[0].stop_reason, len(desk)) == ("b", 0)


@pytest.mark.parametrize(
    ("status", "kind"), [(400, BadRequest), (404, NotFound), (429, Overloaded), (500, RequestFailed)]
)
def test_a_refusal_is_an_error_and_ends_the_siblings(status, kind):
    desk = Desk()
    one = group(desk, n=2)
    over = desk.read(reply(answers=[Admitted(0), Refused(1, status, "no", "n", 3.0)]))
    assert isinstance(one.error, kind)
    assert (over, len(desk), one.finished) == ([0], 0, True)
    if kind is Overloaded:
        assert one.error.retry_after == 3.0


def test_one_that_fails_ends_its_siblings_and_nobody_else():
    desk = Desk()
    one, other = group(desk, n=2), group(desk)
    over = desk.read(reply([(0, [70])], [RequestDelta(1, FinishReason.ERROR, error="NaN")]))
    assert isinstance(one.error, RequestFailed)
    assert (str(one.error), over, len(desk), other.finished) == ("NaN", [0], 1, False)
    assert [answer.finish_reason for answer in one.take().outputs] == ["error", "error"]


def test_a_dead_core_ends_everybody():
    desk = Desk()
    groups = [group(desk), group(desk, n=2)]
    woken = []
    for one in groups:
        one.wake = lambda: woken.append(1)
    desk.fail_all(EngineDead("gone"))
    assert [type(one.error) for one in groups] == [EngineDead, EngineDead]
    assert (len(desk), len(woken)) == (0, 2)


def test_prompt_logprobs_come_in_pieces_and_begin_with_none():
    desk = Desk()
    one = group(desk, prompt_logprobs=1)
    for token in (5, 6):
        piece = arrays([[(token, -1.0), (9, -0.5)]], [2])
        desk.read(reply(deltas=[RequestDelta(0, prompt_logprobs=[piece])]))
    desk.read(reply(deltas=end(handle=0)))
    found = one.take().prompt_logprobs
    assert [None if entry is None else list(entry) for entry in found] == [None, [5, 9], [6, 9]]


class Watcher:
    def __init__(self):
        self.first, self.more, self.done, self.most, self.outcomes = [], [], [], [], []

    def received(self):
        pass

    def ended(self, outcome):
        self.outcomes.append(outcome)

    def first_token(self, seconds):
        self.first.append(seconds)

    def more_tokens(self, seconds, count):
        self.more.append((count, seconds))

    def finished(self, one):
        self.done.append((one.reason, one.prompt_tokens, one.output_tokens, one.cached_tokens))
        self.most.append(one.most_tokens)


def test_observers_hear_of_tokens_and_ends():
    desk, watcher = Desk(), Watcher()
    desk.observe(watcher)
    one = group(desk)
    desk.read(reply([(0, [70])], [RequestDelta(0, cached=1)]))
    desk.read(reply([(0, [71, 72])]))
    assert desk.close(one) == [0]
    assert [count for count, _ in watcher.more] == [2]
    assert (len(watcher.first), watcher.done, watcher.most) == (1, [("abort", 3, 3, 1)], [3])
    assert one.metrics.finished_time is not None


def test_tokens_told_at_the_end_are_timed_from_the_first():
    desk, watcher = Desk(), Watcher()
    desk.observe(watcher)
    one = group(desk)
    first = time.monotonic() - 5.0
    desk.read(reply(deltas=[RequestDelta(0, first=first)]))
    assert (watcher.first, watcher.more) == ([first], [])  # it arrived at 0.0
    assert one.metrics.first_token_time == first
    desk.read(reply([(0, ids_of("abcd"))], end(handle=0)))
    ((count, seconds),) = watcher.more
    assert count == 3
    assert seconds == one.metrics.last_token_time - first >= 5.0
    # One whose tokens come at once has the first, and no time between two.
    alone = group(desk)
    desk.read(reply([(1, [70])], [RequestDelta(1, first=first), *end(handle=1)]))
    assert (len(watcher.first), len(watcher.more)) == (2, 1)
    assert alone.metrics.first_token_time == first


def test_a_request_is_counted_once_with_its_longest_answer():
    desk, watcher = Desk(), Watcher()
    desk.observe(watcher)
    group(desk, n=3)
    for handle, text in ((2, "ab"), (0, "abc"), (1, "a")):
        desk.read(reply([(handle, ids_of(text))], end(handle=handle)))
    assert watcher.most == [None, None, 3]
    one = group(desk, n=2)
    one.fail(RequestFailed("no"))
    desk.close(one, "error")
    assert watcher.most[3:] == [None, 0]
    assert watcher.outcomes == ["succeeded", "failed"]


def test_each_request_ends_in_one_way():
    desk, watcher = Desk(), Watcher()
    desk.observe(watcher)
    group(desk, n=2)
    desk.read(StepReply(0, answers=[Refused(0, 429, "full"), Refused(1, 429, "full")]))
    one = group(desk, n=2)
    desk.read(reply([(2, ids_of("a"))], end(handle=2)))
    desk.close(one)
    group(desk)
    desk.fail_all(EngineDead("gone"))
    assert watcher.outcomes == ["rejected", "aborted", "failed"]


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9)), max_size=30), st.integers(0, 12))
def test_handles_begin_again_and_pass_over_open_ones(steps, start):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fanout, "HANDLES", 12)
        desk, groups = Desk(), []
        desk._next = start
        for n, gone in steps:
            before = set(desk._open)
            try:
                one = group(desk, n=n)
            except BadRequest:
                # Nowhere are so many side by side.
                assert all(before & set(range(at, at + n)) for at in range(12 - n + 1))
            else:
                assert not before & set(one.handles)
                assert set(one.handles) <= set(range(12))
                groups.append(one)
            if gone < len(groups):
                desk.close(groups.pop(gone))
        with pytest.raises(BadRequest, match="handles"):
            desk.handles(13)


def test_columns_of_numpy_are_read_as_they_are():
    desk = Desk()
    one = group(desk, DELTA)
    desk.read(StepReply(0, ints([0]), ints([2]), np.asarray([70, 71], np.int32)))
    assert one.take().outputs[0].token_ids == [70, 71]


@given(
    st.lists(st.sampled_from([0, 2, 3, *range(4 + 97, 4 + 100), 4 + 0xC3, 4 + 0xA9]), max_size=20),
    st.integers(1, 4),
    st.sampled_from([None, ["bc"], ["|>a"], ["<|tu"]]),
)
def test_marks_stand_where_the_special_tokens_are(tokens, size, stop):
    tokens = [*tokens, 60]
    whole = answer(FINAL, skip_special_tokens=False, stop=stop)
    push_all(whole, tokens, size=size)
    output = whole.take()
    texts = {token: small().token(token) for token in (0, 2, 3)}
    for at, token in output.marks:
        # A stop string may end the text in the middle of one.
        assert texts[token].startswith(output.text[at : at + len(texts[token])])
    if stop is None:
        assert [token for _, token in output.marks] == [token for token in tokens if token in texts]
    quick, marks, text = answer(DELTA, skip_special_tokens=False, stop=stop), [], ""
    for at in range(0, len(tokens), size):
        final = at + size >= len(tokens)
        quick.push(tokens[at : at + size], end() if final else ())
        if (news := quick.take()) is not None:
            assert all(0 <= mark < len(news.text) for mark, _ in news.marks)
            marks += [(len(text) + mark, token) for mark, token in news.marks]
            text += news.text
        if quick.finished:
            break
    assert (text, marks) == (output.text, list(output.marks))


def test_no_marks_where_special_tokens_are_not_shown():
    one = answer(FINAL)
    push_all(one, [2, 4 + 97, 60])
    assert one.take().marks == ()


def test_a_reply_may_name_a_request_several_times():
    desk = Desk()
    one, other = group(desk, DELTA), group(desk, DELTA)
    desk.read(StepReply(0, ints([0, 1, 0]), ints([1, 1, 1]), ints([70, 80, 71])))
    assert one.take().outputs[0].token_ids == [70, 71]
    assert other.take().outputs[0].token_ids == [80]
