"""Whatever a client sends to the APIs of agents, it is answered: never by a 5xx but 501, in the API's own shape."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.front.server.anthropic.schema import MessagesBody
from octavo.front.server.openai.responses.schema import ResponsesBody
from octavo.testing.scripted import Scripted
from tests.contract import agents
from tests.contract.test_fuzz import JSON, bodies

TEXT = st.text(max_size=8)
LENGTH = st.integers(0, 40)
ID = st.sampled_from(["a", "b"])
KINDS = ["text", "input_text", "output_text", "refusal", "input_image", "image", "thinking", "tool_use", "tool_result"]
PART = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS)},
    optional={
        "text": TEXT,
        "thinking": TEXT,
        "id": ID,
        "name": TEXT,
        "input": JSON,
        "tool_use_id": ID,
        "content": JSON,
    },
)
CONTENT = TEXT | st.lists(PART, max_size=3)
ROLE = st.sampled_from(["user", "assistant", "system", "developer"])
PLAIN = st.lists(st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": TEXT}), min_size=1)
MESSAGE = st.fixed_dictionaries({"role": ROLE, "content": CONTENT})
CALL = st.fixed_dictionaries({"type": st.just("function_call"), "call_id": ID, "name": TEXT, "arguments": TEXT})
OUTPUT = st.fixed_dictionaries({"type": st.just("function_call_output"), "call_id": ID, "output": CONTENT})
REASONING = st.fixed_dictionaries({"type": st.just("reasoning"), "summary": st.lists(PART, max_size=2)})
INPUT = TEXT | PLAIN | st.lists(MESSAGE | CALL | OUTPUT | REASONING | JSON, max_size=4)
SCHEMA = st.just({"type": "object"}) | JSON
TOOL = st.fixed_dictionaries(
    {"name": ID}, optional={"type": st.sampled_from(["function", "custom", "mcp"]), "parameters": SCHEMA,
                            "input_schema": SCHEMA, "strict": st.booleans(), "description": TEXT},
)  # fmt: skip
CHOICE = st.sampled_from(["auto", "none", "required"]) | st.fixed_dictionaries(
    {"type": st.sampled_from(["auto", "any", "tool", "none", "function", "allowed_tools"])},
    optional={"name": ID, "mode": st.just("auto"), "tools": st.lists(TOOL, max_size=2)},
)


EFFORT = st.sampled_from(["low", "none", "x"])
#: Fields beside those of chat, with values that are right more often than not.
MORE = {
    "max_output_tokens": st.integers(0, 30),
    "tools": st.lists(TOOL, max_size=2),
    "tool_choice": CHOICE,
    "include": st.lists(st.sampled_from(["message.output_text.logprobs", "x"]), max_size=2),
    "background": st.booleans(),
    "store": st.booleans(),
    "reasoning": st.fixed_dictionaries({}, optional={"effort": EFFORT}),
    "thinking": st.fixed_dictionaries({"type": st.sampled_from(["enabled", "disabled"]), "budget_tokens": st.just(9)}),
}


def requests(cls, **own):
    own["model"] = st.just("scripted")
    more = {name: MORE[name] for name in MORE if name in cls.model_fields}
    base = st.fixed_dictionaries(own) | bodies(cls, **own)
    return st.builds(lambda base, more: base | more, base, st.fixed_dictionaries({}, optional=more))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Scripted(agents.folder(tmp_path_factory.mktemp("agent"))) as found:
        found.say("", agents.THOUGHT + "Sunny." + agents.TWO_CALLS)
        yield found


@settings(max_examples=60, deadline=None)
@given(body=requests(ResponsesBody, input=INPUT))
def test_responses(server, body):
    status, answer = server.raw("/v1/responses", json.dumps(body).encode())
    assert status < 500 or status == 501, (status, answer)
    if status != 200:
        error = json.loads(answer)["error"]
        assert error["code"] == status
        assert error["message"].strip()
    elif answer.startswith(b"event: "):
        last = json.loads(answer.decode().split("\n\n")[-2].split("data: ")[1])
        assert last["type"] in ("response.completed", "response.incomplete")
    else:
        assert json.loads(answer)["status"] in ("queued", "in_progress", "completed", "incomplete")


@settings(max_examples=60, deadline=None)
@given(body=requests(MessagesBody, messages=PLAIN | st.lists(MESSAGE, max_size=3) | JSON, max_tokens=LENGTH))
def test_messages(server, body):
    status, answer = server.raw("/v1/messages", json.dumps(body).encode())
    assert status < 500 or status == 501, (status, answer)
    if status != 200:
        error = json.loads(answer)
        assert error["type"] == "error"
        assert error["error"]["message"].strip()
    elif answer.startswith(b"event: "):
        assert answer.endswith(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
    else:
        assert json.loads(answer)["content"]
