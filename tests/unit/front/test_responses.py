"""The pure parts of the responses API: what becomes of a request, what is kept, whose log-probabilities are whose."""

import asyncio
import json
import tracemalloc
import weakref

import pytest
from pydantic import ValidationError

from octavo.errors import BadRequest, NotFound, Overloaded, Unsupported
from octavo.front.server.openai.responses.convert import chat_fields, check
from octavo.front.server.openai.responses.logprobs import Picker
from octavo.front.server.openai.responses.schema import ResponsesBody
from octavo.front.server.openai.responses.store import Entry, Limits, Store, Turn, weight
from octavo.front.server.openai.responses.truncate import shortened
from octavo.front.server.openai.schema import TokenLogprob
from tests.unit.front.test_blocks import fresh

WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}
TIME = {"type": "function", "name": "time"}


def body(**fields):
    return ResponsesBody.model_validate({"input": "hello", **fields})


def fields_of(**fields):
    found = body(**fields)
    check(found)
    items = [] if isinstance(found.input, str) else found.input
    return chat_fields(found, [(f"input.{index}", item) for index, item in enumerate(items)])


def messages_of(*items, **fields):
    return fields_of(input=list(items), **fields)["messages"]


def test_items_become_messages():
    assert messages_of(
        {"role": "developer", "content": "be short"},
        {"role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "a", "name": "weather", "arguments": '{"city": "Oslo"}'},
        {"type": "function_call", "call_id": "b", "name": "time", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "b", "output": "noon"},
        {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "rain"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "well"}]},
        {"role": "assistant", "content": "Rain."},
        {"role": "assistant", "content": "Really."},
        instructions="You help.",
    ) == [
        {"role": "system", "content": "You help."},
        {"role": "developer", "content": "be short"},
        {"role": "user", "content": "weather?"},
        {
            "role": "assistant",
            "reasoning": "hm",
            "content": "I look.",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}},
                {"id": "b", "type": "function", "function": {"name": "time", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "b", "name": "time", "content": "noon"},
        {"role": "tool", "tool_call_id": "a", "name": "weather", "content": "rain"},
        {"role": "assistant", "reasoning": "well", "content": "Rain."},
        {"role": "assistant", "content": "Really."},
    ]


def test_several_parts_stay_parts():
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert messages_of({"role": "user", "content": parts}) == [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    ]


def test_tools_and_choices():
    tools = [WEATHER, TIME]
    told = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}, "strict": True}}
    assert fields_of(tools=tools)["tools"] == [told, {"type": "function", "function": {"name": "time"}}]
    assert "tool_choice" not in fields_of(tools=tools)
    assert fields_of(tools=tools, tool_choice="required")["tool_choice"] == "required"
    named = fields_of(tools=tools, tool_choice={"type": "function", "name": "time"})
    assert named["tool_choice"] == {"type": "function", "function": {"name": "time"}}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]}
    found = fields_of(tools=tools, tool_choice=allowed, parallel_tool_calls=False)
    assert (found["tools"], found["tool_choice"], found["parallel_tool_calls"]) == ([told], "required", False)


def test_formats_and_extras():
    schema = {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}
    found = fields_of(text={"format": schema}, reasoning={"effort": "low"}, top_k=3, seed=5, max_output_tokens=7)
    assert found["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": {"type": "object"}, "strict": True},
    }
    assert (found["reasoning_effort"], found["top_k"], found["seed"]) == ("low", 3, 5)
    assert found["max_completion_tokens"] == 7
    assert fields_of(text={"format": {"type": "json_object"}})["response_format"] == {"type": "json_object"}
    assert "response_format" not in fields_of(text={"format": {"type": "text"}})
    found = fields_of(include=["message.output_text.logprobs"], top_logprobs=2)
    assert (found["logprobs"], found["top_logprobs"], found["stream"]) == (True, 2, True)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"conversation": "c"}, "conversation"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"moderation": {"model": "m"}}, "moderation"),
        ({"n": 2}, "n"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"background": True, "store": False}, "background"),
        ({"stream_options": {}}, "stream_options"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "function"}]}, "tools.0.name"),
        ({"tools": [TIME | {"defer_loading": True}]}, "tools.0.defer_loading"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tools": [TIME], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
        ({"tools": [TIME], "tool_choice": {"type": "mcp"}}, "tool_choice.type"),
        ({"tools": [TIME], "tool_choice": {"type": "allowed_tools", "mode": "x"}}, "tool_choice.mode"),
        ({"tools": [TIME], "tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice.tools"),
        (
            {"tools": [TIME], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]}},
            "tool_choice.tools.0",
        ),
        ({"input": [{"type": "function_call_output", "call_id": "x", "output": ""}]}, "input.0.call_id"),
        (
            {"input": [{"type": "function_call", "call_id": "x", "name": "f", "arguments": "{"}]},
            "input.0.arguments",
        ),
        ({"input": [{"role": "user", "content": [{"type": "audio"}]}]}, "input.0.content.0.type"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input.0.content.0.text"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(fields, param):
    with pytest.raises(BadRequest) as caught:
        fields_of(**fields)
    assert caught.value.param == param


def test_a_call_that_was_cut_off_goes_as_far_as_it_came():
    call = {"type": "function_call", "call_id": "x", "name": "f", "arguments": '{"a": 1, "b', "status": "incomplete"}
    assert messages_of(call)[0]["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'


def test_media_is_unsupported():
    with pytest.raises(Unsupported) as caught:
        messages_of({"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]})
    assert caught.value.param == "input.0.content.0"


@pytest.mark.parametrize(
    "item", [{"type": "item_reference", "id": "x"}, {"id": "x"}, {"type": "mcp_call"}, "x", 5, {"role": "wizard"}]
)
def test_items_of_other_types_are_refused(item):
    with pytest.raises(ValidationError):
        body(input=[item])


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": {str(n): "" for n in range(17)}},
        {"metadata": {"a": "b" * 513}},
        {"max_output_tokens": 0},
        {"truncation": "middle"},
        {"service_tier": "flex"},
        {"text": {"verbosity": "low"}},
        {"reasoning": {"summary": "detailed"}},
        {"reasoning": {"mode": "pro"}},
        {"include": ["everything"]},
        {"stream": True, "stream_options": {"include_obfuscation": True}},
    ],
)
def test_values_that_are_none(fields):
    with pytest.raises(ValidationError):
        body(**fields)


# -- what is kept --


def items(*texts):
    return body(input=[{"role": "user", "content": text} for text in texts]).input


def kept(store, name, owner=b"a", before=None, size=100, ended=True):
    stops = []
    entry = Entry(fresh(id=name), owner, Turn(before, items(name), size), lambda: stops.append(name))
    store.add(entry)
    if ended:
        store.end(entry, items(f"after {name}"))
    return entry, stops


def names(store):
    return [name for name in "abcdefgh" if name in store._entries]


def test_a_response_is_its_keys_only():
    store = Store(Limits())
    kept(store, "a")
    assert store.get("a", b"a").response.id == "a"
    for name, owner in (("a", b"b"), ("b", b"a")):
        with pytest.raises(NotFound) as caught:
            store.get(name, owner, "previous_response_id")
        assert caught.value.param == "previous_response_id"


def test_the_oldest_that_has_ended_goes_first():
    store = Store(Limits(count=2))
    kept(store, "a", ended=False)
    kept(store, "b")
    kept(store, "c")
    assert names(store) == ["a", "c"]
    kept(store, "d", ended=False)
    with pytest.raises(Overloaded):
        kept(store, "e")
    assert names(store) == ["a", "d"]


def test_age():
    now = 0.0
    store = Store(Limits(age=10), clock=lambda: now)
    kept(store, "a")
    kept(store, "b", ended=False)
    now = 11.0
    with pytest.raises(NotFound):
        store.get("a", b"a")
    assert store.get("b", b"a")


def test_bytes_are_counted_and_given_back():
    store = Store(Limits(size=1 << 20))
    first, _ = kept(store, "a", size=1000)
    assert store.size > 1000
    second, _ = kept(store, "b", before=first.turn, size=500)
    store.remove(first)
    assert [item.content for item in second.turn.conversation()] == ["a", "after a", "b", "after b"]
    assert store.size > 1500  # the second goes on from the first, so its items are still there
    store.remove(second)
    assert store.size == 0
    assert len(store) == 0


def test_what_is_small_as_text_is_weighed_as_memory():
    """By what the allocator says: nobody gets a multiple of --response-store-size with tiny values."""
    part = {"type": "input_text", "text": ""}
    for message in {"content": [part] * 5000}, {"content": "a", "x": [{} for _ in range(5000)]}:
        tracemalloc.start()
        found = body(**json.loads(json.dumps({"input": [{"role": "user", **message}]}))).input
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert taken / 2 < weight(found) < taken * 2


def test_a_response_that_has_ended_lets_go_of_its_request():
    class Work:
        def close(self):
            pass

    store, work = Store(Limits()), Work()
    entry = Entry(fresh(id="a"), b"", Turn(None, items("a"), 10), work.close)
    there = weakref.ref(work)
    store.add(entry)
    del work
    assert there() is not None
    store.end(entry, items("b"))
    assert there() is None
    store.remove(entry)


def test_conversations_that_share_their_beginning_count_it_once():
    store = Store(Limits())
    first, _ = kept(store, "a", size=100_000)
    before = store.size
    entries = [kept(store, name, before=first.turn, size=10)[0] for name in "bcd"]
    assert store.size - before < 50_000
    for entry in [first, *entries]:
        store.remove(entry)
    assert store.size == 0


def test_bytes_are_bounded():
    store = Store(Limits(size=100_000))
    for name in "abcdefgh":
        kept(store, name, size=30_000)
        assert store.size <= 100_000
    assert names(store) == ["g", "h"]


def test_events_that_find_no_room_are_dropped():
    store = Store(Limits(size=100_000))
    entry, _ = kept(store, "a", ended=False)
    for _ in range(200):
        store.tell(entry, [b"x" * 1000])
    assert entry.frames is None
    assert store.size < 100_000
    with pytest.raises(BadRequest):
        entry.told()
    store.end(entry, items("answer"))
    store.remove(entry)
    assert store.size == 0


def test_removal_ends_the_work():
    store = Store(Limits())
    entry, stops = kept(store, "a", ended=False)
    store.remove(entry)
    assert stops == ["a"]
    assert entry.cancelled
    store.end(entry, ())
    assert entry.turn is None
    assert store.size == 0


def test_followers_get_what_was_and_what_comes():
    async def run():
        store = Store(Limits())
        entry, _ = kept(store, "a", ended=False)
        store.tell(entry, [b"0", b"1"])

        async def follow(start):
            return b"".join([frames async for frames in entry.follow(start)])

        followers = [asyncio.ensure_future(follow(start)) for start in (0, 1, 3, 9)]
        for number in range(2, 5):
            await asyncio.sleep(0)
            store.tell(entry, [str(number).encode()])
        store.end(entry, ())
        assert await asyncio.gather(*followers) == [b"01234", b"1234", b"34", b""]
        assert await follow(4) == b"4"

    asyncio.run(asyncio.wait_for(run(), 240))


# -- log-probabilities --


def tokens(*texts):
    return [TokenLogprob(token=text, logprob=-1.0, bytes=None, top_logprobs=[]) for text in texts]


def test_log_probabilities_belong_to_the_text_that_shows():
    picker = Picker()

    def feed(texts, text, other=False):
        return [token.token for token in picker.feed(tokens(*texts), text, other)]

    assert feed(["Hm", "."], "", True) == []
    assert feed(["</think>"], "") == []
    assert feed(["\n\n", "Sun"], "Sun") == ["Sun"]
    assert feed(["ny", "<to"], "ny") == ["ny"]
    assert feed(["day"], "<today") == ["<to", "day"]
    assert feed(["�", "�"], "\u00e9") == ["�", "�"]


# -- what is too long --


@pytest.mark.parametrize("turns", [0, 1, 2, 5, 9])
@pytest.mark.parametrize("room", [0, 3, 4, 7, 100])
def test_the_oldest_turns_go_first(turns, room):
    given = body(input=[{"role": "system", "content": "s"}, *[{"role": r, "content": f"{r}{t}"} for t in range(turns)
                                                              for r in ("user", "assistant")]]).input  # fmt: skip
    placed = [(f"input.{index}", item) for index, item in enumerate(given)]
    asked = []

    async def fits(some):
        asked.append(len(some))
        return len(some) <= room

    kept = asyncio.run(shortened(placed, fits))
    texts = [item.content for _, item in kept]
    assert texts[0] == "s"
    assert texts[1:] == [item.content for item in given[len(given) - len(texts) + 1 :]]
    assert len(texts) == 1 or texts[1].startswith("user")
    most = max([1 + 2 * n for n in range(min(turns, 1), turns + 1) if 1 + 2 * n <= room], default=1 + 2 * min(turns, 1))
    assert len(texts) == most
    assert len(asked) <= 5
