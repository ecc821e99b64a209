"""The anthropic package against a live server: loops with tools, headers, models, and coming back when turned away."""

import anthropic
import pytest

from octavo.testing.scripted import Scripted
from tests.contract import agents


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = agents.folder(tmp_path_factory.mktemp("agent"))
    with Scripted(folder, ["--api-key", "key", "--enable-request-id-headers"]) as found:
        found.say_all(
            {
                "plain": ["It is sunny."],
                "weather": [agents.THOUGHT + agents.CALL],
                "rain in Oslo": ["Take a coat."],
            }
        )
        yield found


@pytest.fixture(scope="module")
def client(server):
    with anthropic.Anthropic(base_url=server.url, api_key="key", max_retries=0) as found:
        yield found


def says(text):
    return {"model": "scripted", "max_tokens": 300, "messages": [{"role": "user", "content": text}]}


@anthropic.beta_tool
def weather(city: str, days: int = 1) -> str:
    """Weather of a city.

    Args:
        city: which
        days: how many
    """
    return f"rain in {city} for {days} days"


@pytest.mark.parametrize("stream", [False, True])
def test_a_loop_with_tools(client, stream):
    runner = client.beta.messages.tool_runner(**says("weather"), tools=[weather], stream=stream)
    turns = [turn.get_final_message() if stream else turn for turn in runner]
    assert [turn.stop_reason for turn in turns] == ["tool_use", "end_turn"]
    assert turns[-1].content[-1].text == "Take a coat."


def test_raw_responses(client):
    raw = client.messages.with_raw_response.create(**says("plain"), extra_headers={"X-Request-Id": "mine"})
    assert raw.headers["x-request-id"] == "mine"
    assert raw.parse().content[0].text == "It is sunny."
    with client.messages.with_streaming_response.create(**says("plain"), stream=True) as streamed:
        assert streamed.headers["content-type"].startswith("text/event-stream")
        assert sum(line == "event: message_stop" for line in streamed.iter_lines()) == 1
    with client.messages.stream(**says("plain")) as stream:
        assert "".join(stream.text_stream) == "It is sunny."


def test_models(client):
    assert client.models.retrieve("scripted").id == "scripted"
    assert [card.id for card in client.models.list()] == ["scripted"]


def test_a_bearer_token(server):
    with anthropic.Anthropic(base_url=server.url, auth_token="key", api_key=None, max_retries=0) as client:
        assert client.messages.create(**says("plain")).stop_reason == "end_turn"


def test_errors_are_typed(client):
    for more, error, kind in (
        ({"model": "other"}, anthropic.NotFoundError, "not_found_error"),
        ({"max_tokens": 0}, anthropic.BadRequestError, "invalid_request_error"),
        ({"messages": []}, anthropic.BadRequestError, "invalid_request_error"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, anthropic.APIStatusError, None),
    ):
        with pytest.raises(error) as caught:
            client.messages.create(**says("plain") | more)
        assert kind is None or caught.value.body["error"]["type"] == kind
        assert caught.value.body["error"]["message"]


def test_threads_are_refused_as_clients_expect(client):
    """A client that is told so sends the whole conversation; one that is not would send the rest of it only."""
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(**says("plain"), extra_body={"thread": {"type": "create"}})
    assert caught.value.body["error"]["details"]["error_code"] == "thread_unsupported_request"
