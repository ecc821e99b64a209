"""Random answers through the state machines of responses and messages: order, indexes, and that nothing is lost."""

import json

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response as ClientResponse
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter
from pydantic_core import from_json

from octavo.front.parsers.events import Event, Kind
from octavo.front.server.anthropic.events import MessageEvents
from octavo.front.server.anthropic.schema import MessageOut, UsageOut
from octavo.front.server.blocks import Blocks, Move
from octavo.front.server.openai.responses.answers import (
    InputTokensDetails,
    OutputTokensDetails,
    Response,
    ResponseError,
    ResponseUsage,
)
from octavo.front.server.openai.responses.events import ResponseEvents

PIECES = st.lists(st.text('ab \n\u00e9\u4e16\U0001f600"{', max_size=4), max_size=5)
JSONS = st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=4), max_size=3).map(json.dumps)


@st.composite
def answers(draw):
    """(events, what was said as (kind, name, text)); the last call may lack its end."""
    events, said, calls = [], [], 0
    for kind in draw(st.lists(st.sampled_from([Kind.REASONING, Kind.CONTENT, Kind.CALL]), max_size=6)):
        if kind is not Kind.CALL:
            pieces = draw(PIECES)
            events += [Event(kind, piece) for piece in pieces]
            if text := "".join(pieces):
                if said and said[-1][0] is kind:
                    said[-1] = (kind, "", said[-1][2] + text)
                else:
                    said.append((kind, "", text))
            continue
        text = draw(JSONS)
        cut = draw(st.integers(0, len(text)))
        inside = draw(PIECES)
        events.append(Event(Kind.CALL, f"f{calls}", calls, f"call-{calls}"))
        events += [Event(Kind.ARGUMENTS, part, calls) for part in (text[:cut], text[cut:])]
        # Text that stands inside a call comes out behind it.
        events += [Event(Kind.CONTENT, piece) for piece in inside]
        events.append(Event(Kind.CALL_END, "", calls))
        said.append((Kind.CALL, f"f{calls}", text))
        if rest := "".join(inside):
            said.append((Kind.CONTENT, "", rest))
        calls += 1
    if events and events[-1].kind is Kind.CALL_END and draw(st.booleans()):
        events.pop()
    return events, said


def cuts(draw_from, events):
    """The events in several feeds."""
    at = sorted(draw_from)
    return [events[start:end] for start, end in zip([0, *at], [*at, len(events)], strict=True)]


FEEDS = st.lists(st.integers(0, 30), max_size=4)


def read(frames):
    """[(event name, data)] of frames."""
    found = []
    for part in b"".join(frames).decode().split("\n\n"):
        if part:
            name, data = part.split("\n")
            found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def fresh(**more):
    return Response(
        id="resp_1", created_at=1, status="in_progress", background=False, instructions=None, max_output_tokens=None,
        max_tool_calls=None, metadata={}, model="m", parallel_tool_calls=True, previous_response_id=None,
        prompt_cache_key=None, reasoning={}, safety_identifier=None, store=False, temperature=1.0,
        text={"format": {"type": "text"}}, tool_choice="auto", tools=[], top_logprobs=0, top_p=1.0,
        truncation="disabled", user=None,
    ).model_copy(update=more)  # fmt: skip


USAGE = ResponseUsage(
    input_tokens=3, input_tokens_details=InputTokensDetails(cached_tokens=1), output_tokens=2,
    output_tokens_details=OutputTokensDetails(reasoning_tokens=0), total_tokens=5,
)  # fmt: skip
STREAM_EVENT = TypeAdapter(ResponseStreamEvent)


def stream(events, feeds, status="completed", **more):
    machine = ResponseEvents(fresh(**more))
    frames = machine.begin()
    for part in cuts([min(at, len(events)) for at in feeds], events):
        frames += machine.feed(part)
    frames += machine.end(status, USAGE, at=2)
    return machine, read(frames)


def check_order(told):
    """The rules of a responses stream; returns its items put together from the deltas alone."""
    assert [data["sequence_number"] for _, data in told] == list(range(len(told)))
    assert all(name == data["type"] for name, data in told)
    items, open_item, open_part = [], None, None
    for name, data in told[2:-1]:
        if name == "response.output_item.added":
            assert open_item is None
            assert data["output_index"] == len(items)
            open_item = data["item"]["id"]
            items.append((data["item"]["type"], [], data["item"]))
        elif name == "response.output_item.done":
            assert open_part is None
            assert data["item"]["id"] == open_item
            items[-1] = (*items[-1][:2], data["item"])
            open_item = None
        else:
            assert data["item_id"] == open_item
            assert data["output_index"] == len(items) - 1
            if name == "response.content_part.added":
                assert open_part is None
                open_part = data["part"]["type"]
            elif name == "response.content_part.done":
                assert data["part"]["text"] == "".join(items[-1][1])
                open_part = None
            elif name.endswith("arguments.done"):
                assert data["arguments"] == "".join(items[-1][1])
            elif name.endswith(".done"):
                assert data["text"] == "".join(items[-1][1])
            else:
                assert data["delta"]
                items[-1][1].append(data["delta"])
    assert open_item is None
    return items


@settings(max_examples=150, deadline=None)
@given(answer=answers(), feeds=FEEDS, status=st.sampled_from(["completed", "incomplete", "failed", "cancelled"]))
def test_a_response_is_what_its_events_say(answer, feeds, status):
    events, said = answer
    machine, told = stream(events, feeds, status)
    for _, data in told:
        STREAM_EVENT.validate_python(data)
    assert [name for name, _ in told[:2]] == ["response.created", "response.in_progress"]
    items = check_order(told)
    kinds = {Kind.REASONING: "reasoning", Kind.CONTENT: "message", Kind.CALL: "function_call"}
    expected = [(kinds[kind], text) for kind, _, text in said]
    if not said and status in ("completed", "incomplete"):
        expected = [("message", "")]
    assert [(kind, "".join(pieces)) for kind, pieces, _ in items] == expected
    last = told[-1][1]["response"]
    assert last["output"] == [item for _, _, item in items]
    assert last == json.loads(machine.response.model_dump_json())
    assert last["status"] == status
    assert told[-1][0] == "response." + ("incomplete" if status == "cancelled" else status)
    assert (last["incomplete_details"] is not None) == (status == "incomplete")
    ids = [item["id"] for item in last["output"]]
    assert len(set(ids)) == len(ids)
    ClientResponse.model_validate(last)


@settings(max_examples=50, deadline=None)
@given(answer=answers(), feeds=FEEDS)
def test_how_a_response_is_fed_does_not_show_in_it(answer, feeds):
    events, _ = answer
    assert stream(events, feeds)[1][-1][1]["response"] == stream(events, [])[1][-1][1]["response"]


def test_the_order_of_a_plain_answer():
    names = [name for name, _ in stream([Event(Kind.CONTENT, "a"), Event(Kind.CONTENT, "b")], [1])[1]]
    assert names == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]


def test_a_background_response_is_queued_first():
    _, told = stream([], [], background=True, status="completed")
    machine = ResponseEvents(fresh(background=True).model_copy(update={"status": "queued"}))
    assert [name for name, _ in read(machine.begin())] == [
        "response.created",
        "response.queued",
        "response.in_progress",
    ]
    assert [data["response"]["status"] for _, data in told[:2]] == ["in_progress", "in_progress"]


@pytest.mark.parametrize("status", ["incomplete", "failed", "cancelled"])
def test_what_was_cut_off_is_incomplete(status):
    events = [Event(Kind.REASONING, "hm"), Event(Kind.CONTENT, "half a sen")]
    machine, _ = stream(events, [], status)
    assert [item.status for item in machine.response.output] == ["completed", "incomplete"]
    call = [Event(Kind.CALL, "f", 0, "c"), Event(Kind.ARGUMENTS, '{"a": ', 0), Event(Kind.CALL_END, "", 0)]
    machine, _ = stream(call, [], "completed")
    assert [item.status for item in machine.response.output] == ["incomplete"]


def test_a_failure_says_why():
    machine = ResponseEvents(fresh())
    machine.begin()
    ((name, data),) = read(machine.end("failed", error=ResponseError(code="server_error", message="lost")))
    assert name == "response.failed"
    assert data["response"]["error"] == {"code": "server_error", "message": "lost"}
    assert data["response"]["output"] == []


MESSAGE_EVENT = TypeAdapter(RawMessageStreamEvent)


def message(events, feeds, finish="stop", stop=None):
    usage = UsageOut(input_tokens=3, cache_read_input_tokens=1, output_tokens=0)
    machine = MessageEvents(MessageOut(id="msg_1", model="m", usage=usage))
    frames = machine.begin(usage)
    for part in cuts([min(at, len(events)) for at in feeds], events):
        frames += machine.feed(part)
    return machine.message, read(frames + machine.end(finish, stop, usage.model_copy(update={"output_tokens": 9})))


def fold(told):
    """The message that events add up to, as clients put it together."""
    message = told[0][1]["message"]
    arguments = {}
    for name, data in told[1:]:
        if name == "content_block_start":
            message["content"].append(data["content_block"])
        elif name == "content_block_delta":
            block, delta = message["content"][data["index"]], data["delta"]
            if delta["type"] == "input_json_delta":
                arguments[data["index"]] = arguments.get(data["index"], "") + delta["partial_json"]
                block["input"] = from_json(arguments[data["index"]], allow_partial=True)
            else:
                field = delta["type"].removesuffix("_delta")
                block[field] += delta[field]
        elif name == "message_delta":
            message |= data["delta"]
            message["usage"] |= data["usage"]
    return message


@settings(max_examples=150, deadline=None)
@given(answer=answers(), feeds=FEEDS)
def test_a_message_is_what_its_events_say(answer, feeds):
    events, said = answer
    whole, told = message(events, feeds)
    assert told[0][0] == "message_start"
    assert [name for name, _ in told[-2:]] == ["message_delta", "message_stop"]
    open_block, count, signed = None, 0, False
    for name, data in told[1:-2]:
        if name == "content_block_start":
            assert open_block is None
            assert data["index"] == count
            open_block, count = data["content_block"]["type"], count + 1
        elif name == "content_block_stop":
            assert data["index"] == count - 1
            assert signed == (open_block == "thinking")
            open_block, signed = None, False
        else:
            assert data["index"] == count - 1
            assert not signed
            signed = data["delta"]["type"] == "signature_delta"
    assert open_block is None
    assert count == max(len(said), 1)
    for _, data in told:
        MESSAGE_EVENT.validate_python(data)
    folded = fold(told)
    assert folded == json.loads(whole.model_dump_json())
    Message.model_validate(folded)
    kinds = {Kind.REASONING: "thinking", Kind.CONTENT: "text", Kind.CALL: "tool_use"}
    assert [block.type for block in whole.content] == ([kinds[kind] for kind, _, _ in said] or ["text"])
    for block, (kind, name, text) in zip(whole.content, said, strict=False):
        if kind is Kind.CALL:
            assert (block.name, block.input) == (name, json.loads(text))
        else:
            assert (block.text if kind is Kind.CONTENT else block.thinking) == text
    assert whole.stop_reason == ("tool_use" if any(kind is Kind.CALL for kind, _, _ in said) else "end_turn")


CALL = [Event(Kind.CALL, "f", 0, "c"), Event(Kind.ARGUMENTS, "{}", 0), Event(Kind.CALL_END, "", 0)]


@pytest.mark.parametrize(
    ("events", "finish", "stop", "expected"),
    [
        ([], "stop", None, ("end_turn", None)),
        ([], "stop", 7, ("end_turn", None)),
        ([], "stop", "END", ("stop_sequence", "END")),
        ([], "length", None, ("max_tokens", None)),
        ([], "context", None, ("model_context_window_exceeded", None)),
        (CALL, "tool_calls", None, ("tool_use", None)),
        (CALL, "stop", None, ("tool_use", None)),
        (CALL, "length", None, ("max_tokens", None)),
        ([*CALL[:1], Event(Kind.ARGUMENTS, '{"a": "', 0)], "stop", "END", ("stop_sequence", "END")),
    ],
)
def test_why_a_message_ended(events, finish, stop, expected):
    whole, _ = message(events, [], finish, stop)
    assert (whole.stop_reason, whole.stop_sequence) == expected
    assert whole.content


def test_a_cut_off_call_shows_what_is_there():
    whole, _ = message([*CALL[:1], Event(Kind.ARGUMENTS, '{"a": 1, "b": "x', 0)], [], "length")
    assert whole.content[0].input == {"a": 1}


def test_blocks_close_before_others_open():
    steps = Blocks().feed([Event(Kind.REASONING, "x"), Event(Kind.CONTENT, "y"), *CALL])
    assert [step.move for step in steps] == [
        Move.OPEN, Move.GROW, Move.CLOSE, Move.OPEN, Move.GROW, Move.CLOSE, Move.OPEN, Move.GROW, Move.CLOSE,
    ]  # fmt: skip


def test_thinking_is_left_out_if_asked():
    usage = UsageOut(input_tokens=3, output_tokens=0)
    machine = MessageEvents(MessageOut(id="msg_1", model="m", usage=usage), omit=True)
    frames = machine.begin(usage) + machine.feed([Event(Kind.REASONING, "secret"), Event(Kind.CONTENT, "y")])
    frames += machine.end("stop", None, usage)
    assert b"secret" not in b"".join(frames)
    assert fold(read(frames)) == json.loads(machine.message.model_dump_json())
    assert [block.type for block in machine.message.content] == ["thinking", "text"]
