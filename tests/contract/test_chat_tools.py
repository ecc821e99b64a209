"""Chat with tools and reasoning, over a scripted model: what it writes becomes calls, reasoning and content, whole and
as a stream alike."""

import asyncio
import json

import openai
import pytest
from pydantic import BaseModel

from octavo.testing import tokenizer
from octavo.testing.scripted import Scripted, model

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, NOW]
#: A chat template with tools and reasoning, in the notation of Hermes and Qwen3.
TEMPLATE = (
    "{% if tools %}{{ '<|turn|>system\nTools: <tools>' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
    '{{ \'</tools> Answer with <tool_call>{"name": ..., "arguments": ...}</tool_call><|turn_end|>\n\' }}{% endif %}'
    "{% for m in messages %}{{ '<|turn|>' + m.role + '\n' }}{{ m.content or '' }}"
    '{% for call in m.tool_calls or [] %}{{ \'<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}{{ '<|turn_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|turn|>assistant\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}"
    "{% endif %}{% endif %}"
)
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
THOUGHT = "<think>\nHm, rain?\n</think>\n\n"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo \\"é🙂\\" {x}", "days": 3}}\n</tool_call>'
CALL_NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
CITY = {"city": 'Oslo "é🙂" {x}', "days": 3}
LIST = '[{"name": "get_weather", "parameters": {"city": "Rome"}}, {"name": "now", "parameters": {}}]'
SCRIPT = {
    "plain": ["Sunny and 日本 warm."],
    "thinks": [THOUGHT + "Sunny."],
    "calls": [THOUGHT + CALL],
    "speaks": [THOUGHT + "Let me look.\n\n" + CALL],
    "both": [THOUGHT + CALL + "\n" + CALL_NOW],
    "only thought": ["<think>\nHm"],
    "calls now": [THOUGHT + CALL_NOW],
    "wrong": [THOUGHT + CALL.replace("days", "wind")],
    "choices": [THOUGHT + "One " + CALL, THOUGHT + CALL_NOW, THOUGHT + "Three"],
    "schema": [THOUGHT.rstrip() + '{"city":"Oslo","days":3}'],
}


NAMED = {"type": "function", "function": {"name": "now"}}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = model(tmp_path_factory.mktemp("tools"), TEMPLATE, specials=MARKS)
    with Scripted(folder, ["--max-n", "8"]) as found:
        found.say_all(SCRIPT)
        yield found


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def ask(key, **more):
    extra = {name: more.pop(name) for name in list(more) if name in EXTRA}
    return {"model": "scripted", "messages": [{"role": "user", "content": key}], "extra_body": extra, **more}


EXTRA = (
    "include_reasoning", "thinking_token_budget", "chat_template_kwargs", "skip_special_tokens", "return_token_ids",
    "continue_final_message", "add_generation_prompt", "seed_", "structured_outputs",
)  # fmt: skip


def whole(client, key, **more):
    answer = client.chat.completions.create(**ask(key, **more))
    return [shown(choice.message, choice.finish_reason) for choice in answer.choices], answer


def shown(message, finish):
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    return getattr(message, "reasoning", None), message.content, calls, finish


def streamed(client, key, **more):
    """The chunks put together as any client does, and checked on the way."""
    chunks = list(client.chat.completions.create(**ask(key, **more), stream=True))
    parts = {}
    for chunk in chunks:
        if not chunk.choices:
            continue
        (choice,) = chunk.choices
        if choice.index not in parts:
            assert (choice.delta.role, choice.delta.content) == ("assistant", "")
            parts[choice.index] = {"reasoning": "", "content": "", "calls": [], "finish": None}
            continue
        part, delta = parts[choice.index], choice.delta
        assert part["finish"] is None, "a chunk behind the end"
        reasoning = getattr(delta, "reasoning", None)
        assert not (reasoning and (part["content"] or part["calls"]))
        part["reasoning"] += reasoning or ""
        part["content"] += delta.content or ""
        for call in delta.tool_calls or ():
            if call.function.name is not None:
                assert call.index == len(part["calls"])
                assert call.id
                assert call.type == "function"
                part["calls"].append([call.function.name, ""])
            else:
                assert call.id is None
                assert call.type is None
                assert call.index == len(part["calls"]) - 1
            part["calls"][call.index][1] += call.function.arguments or ""
        part["finish"] = choice.finish_reason
    told = []
    for index in sorted(parts):
        part = parts[index]
        content = part["content"] or (None if part["reasoning"] or part["calls"] else "")
        told.append((part["reasoning"] or None, content, [tuple(call) for call in part["calls"]], part["finish"]))
    return told, chunks


def both(client, key, **more):
    """The one answer, whole and streamed, which must be the same."""
    told, answer = whole(client, key, **more)
    assert streamed(client, key, **more)[0] == told
    ((reasoning, content, calls, finish),) = told
    return reasoning, content, [(name, json.loads(arguments)) for name, arguments in calls], finish, answer


def test_text_reasoning_and_calls(client):
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    assert both(client, "plain", **off)[:4] == (None, "Sunny and 日本 warm.", [], "stop")
    assert both(client, "thinks")[:4] == ("\nHm, rain?\n", "Sunny.", [], "stop")
    reasoning, content, calls, finish, answer = both(client, "calls", tools=TOOLS)
    assert (reasoning, content, calls, finish) == ("\nHm, rain?\n", None, [("get_weather", CITY)], "tool_calls")
    (call,) = answer.choices[0].message.tool_calls
    assert call.id
    assert call.type == "function"
    assert both(client, "speaks", tools=TOOLS)[1:4] == ("Let me look.", [("get_weather", CITY)], "tool_calls")
    assert both(client, "both", tools=TOOLS)[2] == [("get_weather", CITY), ("now", {})]
    assert both(client, "only thought")[:4] == ("\nHm", None, [], "stop")


def test_reasoning_can_be_left_out(client):
    assert both(client, "thinks", include_reasoning=False)[:2] == (None, "Sunny.")


def test_usage_counts_reasoning(client):
    answer = both(client, "thinks")[4]
    *_, chunks = streamed(client, "thinks", stream_options={"include_usage": True})
    assert chunks[-1].usage == answer.usage
    reasoned = answer.usage.completion_tokens_details.reasoning_tokens
    assert 4 < reasoned < answer.usage.completion_tokens
    assert both(client, "plain", reasoning_effort="none")[4].usage.completion_tokens_details.reasoning_tokens == 0


def test_no_calls_where_none_may_be(client):
    """tool_choice none: what the model writes as a call is not told; without tools it is text."""
    assert both(client, "speaks", tools=TOOLS, tool_choice="none")[1:4] == ("Let me look.", [], "stop")
    assert "get_weather" in both(client, "speaks")[1]


def test_one_call_at_most(client):
    assert both(client, "both", tools=TOOLS, parallel_tool_calls=False)[2] == [("get_weather", CITY)]


def test_choices_side_by_side(client):
    told, _ = whole(client, "choices", tools=TOOLS, n=3, temperature=1.0)
    merged, _ = streamed(client, "choices", tools=TOOLS, n=3, temperature=1.0)
    assert sorted(map(str, told)) == sorted(map(str, merged))
    assert sorted(finish for *_, finish in told) == ["stop", "tool_calls", "tool_calls"]


def test_stop_strings_end_arguments_too(client):
    for tell in (whole, streamed):
        ((_, _, ((name, arguments),), finish),) = tell(client, "calls", tools=TOOLS, stop=["days"])[0]
        assert name == "get_weather"
        assert arguments.startswith('{"city": "Oslo')
        assert "days" not in arguments
        assert finish == "stop"


def test_an_answer_cut_short(client):
    whole_ids = whole(client, "calls", tools=TOOLS, return_token_ids=True)[1].choices[0].token_ids
    for size in range(1, len(whole_ids), 7):
        told, _ = whole(client, "calls", tools=TOOLS, max_tokens=size)
        assert streamed(client, "calls", tools=TOOLS, max_tokens=size)[0] == told
        assert told[0][3] == "length"


def test_logprobs_of_every_token(client):
    more = {"tools": TOOLS, "logprobs": True, "top_logprobs": 1, "return_token_ids": True}
    choice = whole(client, "speaks", **more)[1].choices[0]
    assert len(choice.logprobs.content) == len(choice.token_ids)
    chunks = [chunk.choices[0] for chunk in streamed(client, "speaks", **more)[1]]
    told = [entry for chunk in chunks if chunk.logprobs for entry in chunk.logprobs.content]
    assert told == choice.logprobs.content
    assert [token for chunk in chunks for token in getattr(chunk, "token_ids", None) or ()] == choice.token_ids


def test_special_tokens_are_shown_where_asked(client):
    text = both(client, "plain", skip_special_tokens=False, reasoning_effort="none")[1]
    assert text == "Sunny and 日本 warm."


@pytest.mark.parametrize(
    ("more", "status", "param"),
    [
        ({"tools": []}, 400, "tools"),
        ({"tools": [NOW] * 2}, 400, "tools.1.function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, 400, "tools.0.function.name"),
        ({"tools": [{"type": "function"}]}, 400, "tools.0.function"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, 501, "tools.0.type"),
        ({"tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(513)]}, 400, "tools"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]},
            400,
            "tools.0.function.parameters.type",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"x": "y" * 140_000}}}]},
            400,
            "tools.0.function.parameters",
        ),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": 1}}]}, 400, "tools.0.function.strict"),
        ({"tool_choice": "required"}, 400, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "any"}, 400, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, 400, "tool_choice"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "later"}}},
            400,
            "tool_choice.function.name",
        ),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, 501, "tool_choice"),
        ({"functions": [{"name": "now"}]}, 501, "functions"),
        ({"function_call": "auto"}, 501, "function_call"),
        ({"reasoning_effort": "very"}, 400, "reasoning_effort"),
        ({"chat_template_kwargs": {"tools": []}}, 400, "chat_template_kwargs"),
        ({"top_logprobs": 2}, 400, "top_logprobs"),
    ],
)
def test_what_cannot_be_is_refused(server, more, status, param):
    found, answer = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "plain"}], **more})
    assert (found, answer["error"]["param"]) == (status, param), answer


HISTORY = [
    {"role": "developer", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "weather?"}]},
    {
        "role": "assistant",
        "content": None,
        "reasoning": "hm",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "a", "content": "rain"},
    {"role": "assistant", "content": "", "tool_calls": []},
    {"role": "user", "content": "thinks"},
]


def test_a_history_with_calls(server, client):
    asked = {"model": "scripted", "messages": HISTORY, "tools": TOOLS}
    answer = client.chat.completions.create(**asked)
    assert answer.choices[0].message.content == "Sunny."
    status, rendered = server.post("/tokenize", {"messages": HISTORY, "tools": TOOLS})
    assert status == 200, rendered
    assert rendered["count"] == answer.usage.prompt_tokens
    text = server.post("/detokenize", {"tokens": rendered["tokens"]})[1]["prompt"]
    assert '"get_weather", "arguments": {"city": "Oslo"}' in text
    assert "<|turn|>system\nbe brief" in text
    assert '"strict"' not in text
    assert text.count(tokenizer.BOS) == 0


def test_an_answer_goes_on_where_the_last_message_ends(client):
    """What it says is content: the reasoning is behind it."""
    messages = [{"role": "user", "content": "plain"}, {"role": "assistant", "content": "It is"}]
    more = {"continue_final_message": True, "add_generation_prompt": False}
    answer = client.chat.completions.create(model="scripted", messages=messages, tools=TOOLS, extra_body=more)
    assert answer.choices[0].message.content == "Sunny and 日本 warm."


def test_stream_helper_of_the_client(client):
    with client.chat.completions.stream(**ask("speaks", tools=TOOLS)) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds
    message = final.choices[0].message
    assert message.content == "Let me look."
    assert json.loads(message.tool_calls[0].function.arguments) == CITY
    assert final.choices[0].finish_reason == "tool_calls"


def test_async_client(server):
    async def run():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            answer = await client.chat.completions.create(**ask("calls", tools=TOOLS))
            async with client.chat.completions.stream(**ask("calls", tools=TOOLS)) as stream:
                final = await stream.get_final_completion()
            return answer.choices[0].message, final.choices[0].message

    whole, merged = asyncio.run(run())
    for message in (whole, merged):
        assert json.loads(message.tool_calls[0].function.arguments) == CITY


def test_forced_calls_in_the_models_own_notation(client):
    """Behind the reasoning; a model that wants to say something else calls all the same."""
    calls = both(client, "calls", tools=TOOLS, tool_choice="required")
    assert calls[:4] == ("\nHm, rain?\n", None, [("get_weather", CITY)], "tool_calls")
    assert both(client, "both", tools=TOOLS, tool_choice="required")[2] == [("get_weather", CITY), ("now", {})]
    assert both(client, "calls now", tools=TOOLS, tool_choice=NAMED)[1:4] == (None, [("now", {})], "stop")
    for choice in ("required", NAMED):
        ((reasoning, content, ((name, _),), _),), _ = whole(
            client, "thinks", tools=[NOW], tool_choice=choice, max_tokens=80
        )
        assert (reasoning, content, name) == ("\nHm, rain?\n", None, "now")


def test_strict_tools(client):
    """In auto mode too: arguments that break the schema cannot be said, text can."""
    strict = json.loads(json.dumps(WEATHER))
    strict["function"]["strict"] = True
    strict["function"]["parameters"]["additionalProperties"] = False
    assert both(client, "calls", tools=[strict])[2:4] == ([("get_weather", CITY)], "tool_calls")
    assert both(client, "thinks", tools=[strict])[1] == "Sunny."
    wrong = whole(client, "wrong", tools=[strict], max_tokens=150)[0][0]
    assert "wind" not in wrong[2][0][1]
    assert "wind" in whole(client, "wrong", tools=[WEATHER])[0][0][2][0][1]


def test_a_thinking_budget(client):
    free = both(client, "thinks")[4].usage.completion_tokens_details.reasoning_tokens
    for budget in (0, 1, 3, free, free + 9):
        reasoning, content, _, finish, answer = both(client, "thinks", thinking_token_budget=budget)
        assert answer.usage.completion_tokens_details.reasoning_tokens == min(budget, free)
        assert "\nHm, rain?\n".startswith(reasoning or "")
        assert (content, finish) == ("Sunny.", "stop")
    assert both(client, "thinks", thinking_token_budget=-1)[4].usage.completion_tokens_details.reasoning_tokens == free


@pytest.mark.parametrize("more", [{"tool_choice": "required"}, {}, {"thinking_token_budget": 0}])
def test_calls_in_three_steps(server, more):
    """Rendered, generated and derendered they are what the one step says."""
    body = {"messages": [{"role": "user", "content": "calls"}], "tools": TOOLS, "seed": 1, **more}
    _, rendered = server.post("/v1/chat/completions/render", body)
    _, generated = server.post("/inference/v1/generate", rendered)
    status, answer = server.post(
        "/v1/chat/completions/derender",
        {"chat_request": body, "generate_response": generated, "prompt_token_ids": rendered["token_ids"]},
    )
    assert status == 200, answer
    (choice,), (direct,) = answer["choices"], server.post("/v1/chat/completions", body)[1]["choices"]
    for one in (choice, direct):
        one["message"]["tool_calls"][0].pop("id")
    assert choice == direct


@pytest.mark.parametrize(
    "wrong",
    [
        {"budget": -1}, {"budget": "x"}, {"budget": True}, {"after": [5.5]}, {"after": [10**6]}, {"opens": "ab"},
        {"opens": [10**6]}, {"open": 1}, {"open": "no"}, {"free": 3}, {"free": False}, {"after": [1] * 65},
        {"param": 5},
    ],
)  # fmt: skip
def test_what_only_this_program_writes_is_checked_too(server, wrong):
    asked = {"free": True, "after": [5], "budget": 1} | wrong
    body = {"token_ids": [5, 6], "sampling_params": {"structured_outputs": asked, "max_tokens": 4}}
    status, answer = server.post("/inference/v1/generate", body)
    assert status == 400, answer
    assert answer["error"]["param"].startswith("sampling_params.structured_outputs")


class Place(BaseModel):
    city: str
    days: int


def test_structured_answers_behind_reasoning(client):
    answer = client.chat.completions.parse(**ask("schema"), response_format=Place)
    message = answer.choices[0].message
    assert message.parsed == Place(city="Oslo", days=3)
    assert message.reasoning == "\nHm, rain?\n"
    with client.chat.completions.stream(**ask("schema"), response_format=Place) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == Place(city="Oslo", days=3)


def test_calls_or_a_structured_answer(client):
    """With tools, what is no call obeys the schema."""
    more = {"tools": [openai.pydantic_function_tool(Place, name="get_weather")], "response_format": Place}
    assert client.chat.completions.parse(**ask("schema", **more)).choices[0].message.parsed.city == "Oslo"
    (call,) = client.chat.completions.parse(**ask("calls", **more)).choices[0].message.tool_calls
    assert call.function.parsed_arguments == Place(**CITY)
    with pytest.raises(openai.BadRequestError, match="leaves no room for calls"):
        client.chat.completions.create(**ask("calls", tools=TOOLS, structured_outputs={"regex": "a+"}))


# -- a model whose notation nobody knows --


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    with Scripted(model(tmp_path_factory.mktemp("bare"))) as found:
        found.say_all({"list": [LIST], "one": ['[{"name": "now", "parameters": {}}]'], "plain": SCRIPT["plain"]})
        yield found


@pytest.fixture(scope="module")
def bare_client(bare):
    with openai.OpenAI(base_url=f"{bare.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def test_without_a_parser_calls_are_made_by_grammar(bare_client):
    rome = [("get_weather", {"city": "Rome"}), ("now", {})]
    assert both(bare_client, "list", tools=TOOLS, tool_choice="required")[:4] == (None, None, rome, "tool_calls")
    assert both(bare_client, "one", tools=TOOLS, tool_choice=NAMED)[:4] == (None, None, [("now", {})], "stop")
    one = both(bare_client, "list", tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    assert one[2] == rome[:1]
    assert both(bare_client, "plain", tools=TOOLS)[:4] == (None, "Sunny and 日本 warm.", [], "stop")


def test_the_grammar_holds_whatever_the_model_wants_to_say(bare_client):
    """It wants to say something else: what comes is a list of calls all the same, cut by max_tokens."""
    for choice in ("required", NAMED):
        told, _ = whole(bare_client, "plain", tools=[NOW], tool_choice=choice, max_tokens=60)
        assert told[0][2][0][0] == "now"


def test_a_cut_call_is_not_finished(bare_client):
    told, _ = whole(bare_client, "list", tools=TOOLS, tool_choice="required", max_tokens=45)
    assert streamed(bare_client, "list", tools=TOOLS, tool_choice="required", max_tokens=45)[0] == told
    ((_, content, calls, finish),) = told
    assert (content, finish, len(calls)) == (None, "length", 1)
    assert '{"city": "Rome"}'.startswith(calls[0][1])


def test_schemas_that_no_grammar_can_hold(bare):
    """Of a strict tool they are refused; else its calls hold to what can be held."""
    bare.say("unique", '[{"name": "f", "parameters": {"a": [1, 1]}}]')
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}, "required": ["a"]}
    for strict in (False, True):
        tool = {"type": "function", "function": {"name": "f", "parameters": schema, "strict": strict}}
        body = {"messages": [{"role": "user", "content": "unique"}], "tools": [tool], "tool_choice": "required"}
        status, answer = bare.post("/v1/chat/completions", body)
        if strict:
            assert (status, answer["error"]["param"]) == (400, "tools")
            assert "uniqueItems" in answer["error"]["message"]
        else:
            (call,) = answer["choices"][0]["message"]["tool_calls"]
            assert json.loads(call["function"]["arguments"]) == {"a": [1, 1]}


def test_definitions_of_tools_stay_their_own(bare, bare_client):
    def tool(name, kind):
        schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/T"}}, "required": ["a"]}
        return {
            "type": "function",
            "function": {"name": name, "parameters": schema | {"$defs": {"T": {"type": kind}}}},
        }

    tools = [tool("f", "string"), tool("g", "integer")]
    for name, value in (("f", "x"), ("g", 5)):
        text = json.dumps([{"name": name, "parameters": {"a": value}}])
        bare.say(f"defs {name}", text)
        assert both(bare_client, f"defs {name}", tools=tools, tool_choice="required")[2] == [(name, {"a": value})]
