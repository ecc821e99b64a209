"""gpt-oss's format behind the server: messages whose headers say what is reasoning, a call or the answer."""

import json

import pytest
from tokenizers import Tokenizer

from octavo.testing import tokenizer
from octavo.testing.scripted import Scripted, model

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
RETURN, CALL = "<|return|>", "<|call|>"
THINK = f"{CHANNEL}analysis{MESSAGE}Hm.<|end|>{START}assistant"
FINAL = f'{CHANNEL}final{MESSAGE}{{"a": 1}}'
CALLS = f"{CHANNEL}commentary to=functions.now {CONSTRAIN}json{MESSAGE}{{}}"
TOOLS = [{"type": "function", "function": {"name": "now"}}]
JSON = {"response_format": {"type": "json_object"}}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("harmony")
    template = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}" + tokenizer.CHAT_TEMPLATE
    model(folder, template, specials=(START, CHANNEL, MESSAGE, CONSTRAIN, RETURN, CALL))
    ids = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for name, ends in (
        ("config.json", {"eos_token_id": [ids.token_to_id(RETURN), ids.token_to_id(CALL)]}),
        ("tokenizer_config.json", {"eos_token": RETURN}),
    ):
        (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | ends))
    with Scripted(folder, ["--reasoning-parser", "openai_gptoss", "--tool-call-parser", "openai"]) as found:
        yield found


def ask(server, answer, **more):
    """(reasoning, content, names of calls)."""
    server.say("say it", answer)
    body = {"messages": [{"role": "user", "content": "say it"}], "max_tokens": 120, **more}
    status, said = server.post("/v1/chat/completions", body)
    assert status == 200, said
    message = said["choices"][0]["message"]
    calls = [call["function"]["name"] for call in message.get("tool_calls") or ()]
    return message.get("reasoning"), message["content"], calls


@pytest.mark.parametrize("more", [{}, JSON, {"tools": TOOLS}, {"tools": TOOLS, **JSON}])
def test_an_answer_is_what_its_own_message_holds(server, more):
    """Structured output too holds in the message of the answer, not from the first header on."""
    assert ask(server, THINK + FINAL, **more) == ("Hm.", '{"a": 1}', [])
    assert ask(server, FINAL, **more) == (None, '{"a": 1}', [])


def test_structured_output_holds(server):
    reasoning, content, _ = ask(server, f"{THINK}{CHANNEL}final{MESSAGE}hello", **JSON)
    assert (reasoning, content[0]) == ("Hm.", "{")


@pytest.mark.parametrize("more", [{}, JSON, {"tool_choice": "required"}])
def test_calls_come_behind_reasoning(server, more):
    assert ask(server, THINK + CALLS, tools=TOOLS, **more) == ("Hm.", None, ["now"])


@pytest.mark.parametrize("more", [{}, JSON])
def test_strict_tools(server, more):
    """Messages stay free, calls cannot break the schema, and neither can an answer that has one."""
    schema = {"properties": {"x": {"const": 5}}, "required": ["x"], "additionalProperties": False}
    more = {"tools": [{"type": "function", "function": {"name": "now", "parameters": schema, "strict": True}}], **more}
    say = f"{CHANNEL}commentary{MESSAGE}Wait.<|end|>{START}assistant"
    assert ask(server, THINK + FINAL, **more) == ("Hm.", '{"a": 1}', [])
    assert ask(server, THINK + say + CALLS.replace("{}", '{"x": 5}'), **more) == ("Hm.", "Wait.", ["now"])
    server.say("say it", THINK + CALLS)
    body = {"messages": [{"role": "user", "content": "say it"}], "max_tokens": 120, **more}
    (call,) = server.post("/v1/chat/completions", body)[1]["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"x": 5}
    if more.get("response_format"):
        assert ask(server, f"{CHANNEL}final{MESSAGE}hello", **more)[1][0] == "{"
    status, said = server.post("/v1/chat/completions", body | {"thinking_token_budget": 3})
    assert (status, said["error"]["param"]) == (400, "thinking_token_budget")


def test_a_thinking_budget(server):
    header = len("analysis") + 1  # of its message: all but the first token counts
    assert ask(server, THINK + FINAL, thinking_token_budget=header + 1) == ("H", '{"a": 1}', [])
