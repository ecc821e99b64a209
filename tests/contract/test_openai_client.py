"""The openai package against a live server."""

import asyncio

import openai
import pytest

HELLO = [{"role": "user", "content": "the cat sat"}]


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def text_of(stream):
    return "".join(chunk.choices[0].text for chunk in stream if chunk.choices)


def test_models(client):
    assert [card.id for card in client.models.list()] == ["tiny", "also"]
    assert client.models.retrieve("also").max_model_len == 512
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nothing")


def test_completion(client):
    answer = client.completions.create(
        model="tiny", prompt="the cat", max_tokens=12, seed=3, extra_body={"ignore_eos": True}
    )
    (choice,) = answer.choices
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert answer.model == "tiny"
    assert choice.finish_reason == "length"
    assert answer.usage.prompt_tokens == 2
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == 14


@pytest.mark.parametrize("seed", range(4))
def test_a_stream_says_what_the_whole_says(client, seed):
    ask = {"model": "tiny", "prompt": "the cat", "max_tokens": 30, "seed": seed, "logprobs": 2}
    whole = client.completions.create(**ask).choices[0]
    chunks = list(client.completions.create(**ask, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.text
    assert chunks[-1].choices[0].finish_reason == whole.finish_reason
    for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
        told = [getattr(chunk.choices[0].logprobs, name) for chunk in chunks if chunk.choices[0].logprobs]
        assert [entry for part in told for entry in part] == getattr(whole.logprobs, name)


def test_default_max_tokens_and_ids_as_prompt(client):
    answer = client.completions.create(model="also", prompt=[5, 6, 7], extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 16
    assert answer.usage.prompt_tokens == 3


def test_a_default_length_ends_at_the_models(client):
    answer = client.completions.create(model="tiny", prompt=[7] * 505, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 7
    assert answer.choices[0].finish_reason == "length"


def test_many_prompts_and_many_answers(client):
    ask = {"model": "tiny", "prompt": ["the cat", "on a"], "n": 3, "seed": 5, "max_tokens": 6}
    answer = client.completions.create(**ask, extra_body={"ignore_eos": True})
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3, 4, 5]
    assert len({choice.text for choice in answer.choices}) == 6
    assert answer.usage.prompt_tokens == 4
    assert answer.usage.completion_tokens == 36
    texts = [""] * 6
    for chunk in client.completions.create(**ask, extra_body={"ignore_eos": True}, stream=True):
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
    assert texts == [choice.text for choice in answer.choices]


def test_echo_and_scoring(client):
    answer = client.completions.create(model="tiny", prompt="the cat", max_tokens=0, echo=True, logprobs=1)
    (choice,) = answer.choices
    assert choice.text == "the cat"
    assert choice.logprobs.tokens == ["the", " cat"]
    assert choice.logprobs.token_logprobs[0] is None
    assert choice.logprobs.text_offset == [0, 3]
    assert answer.usage.completion_tokens == 0
    streamed = list(client.completions.create(model="tiny", prompt=[5, 6], max_tokens=2, echo=True, stream=True))
    whole = client.completions.create(model="tiny", prompt=[5, 6], max_tokens=2, echo=True, seed=1)
    assert streamed[0].choices[0].text.startswith(whole.choices[0].text[:2])


def test_stop_strings(client):
    free = client.completions.create(model="tiny", prompt="a", max_tokens=60, seed=2, extra_body={"ignore_eos": True})
    text = free.choices[0].text
    stop = text[20:22]
    for stream in (False, True):
        ask = {"model": "tiny", "prompt": "a", "max_tokens": 60, "seed": 2, "stop": [stop, "never said"]}
        answer = client.completions.create(**ask, stream=stream, extra_body={"ignore_eos": True})
        said = text_of(answer) if stream else answer.choices[0].text
        assert said == text[: text.index(stop)]
    answer = client.completions.create(**ask, extra_body={"ignore_eos": True})
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].stop_reason == stop
    kept = client.completions.create(**ask, extra_body={"ignore_eos": True, "include_stop_str_in_output": True})
    assert kept.choices[0].text == text[: text.index(stop)] + stop


def test_stop_token(client):
    ask = {"model": "tiny", "prompt": "a", "max_tokens": 40, "seed": 2}
    free = client.completions.create(**ask, extra_body={"ignore_eos": True, "return_token_ids": True})
    ids = free.choices[0].token_ids
    assert free.choices[0].prompt_token_ids == [101]
    answer = client.completions.create(
        **ask, extra_body={"ignore_eos": True, "return_token_ids": True, "stop_token_ids": [ids[7]]}
    )
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].stop_reason == ids[7]
    assert answer.choices[0].token_ids == ids[: ids.index(ids[7]) + 1]


def test_usage_in_streams(client):
    ask = {"model": "tiny", "prompt": "the cat", "max_tokens": 5, "stream": True, "extra_body": {"ignore_eos": True}}
    *chunks, last = client.completions.create(**ask, stream_options={"include_usage": True})
    assert last.choices == []
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens) == (2, 5, 7)
    assert all(chunk.usage is None for chunk in chunks)
    options = {"include_usage": True, "continuous_usage_stats": True}
    counts = [chunk.usage.completion_tokens for chunk in client.completions.create(**ask, stream_options=options)]
    assert counts == sorted(counts)
    assert counts[-1] == 5


def test_cached_tokens(client):
    prompt = [20 + index for index in range(40)]
    for cached in (0, 36):
        answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=1)
        assert answer.usage.prompt_tokens_details.cached_tokens == cached
    salted = client.completions.create(model="tiny", prompt=prompt, max_tokens=1, extra_body={"cache_salt": "mine"})
    assert salted.usage.prompt_tokens_details.cached_tokens == 0


def test_chat(client):
    answer = client.chat.completions.create(
        model="tiny", messages=HELLO, max_completion_tokens=9, seed=1, logprobs=True, top_logprobs=2,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    (choice,) = answer.choices
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "length"
    assert len(choice.logprobs.content) == 9
    assert "".join(entry.token for entry in choice.logprobs.content) == choice.message.content
    for entry in choice.logprobs.content:
        assert bytes(entry.bytes).decode() == entry.token
        assert len(entry.top_logprobs) in (2, 3)


def test_chat_stream_helper_gives_the_same(client):
    ask = {"model": "tiny", "messages": HELLO, "max_tokens": 20, "seed": 4}
    # The helper wants an answer that ended by itself.
    ask["stop"] = client.chat.completions.create(**ask).choices[0].message.content[8:10]
    whole = client.chat.completions.create(**ask)
    with client.chat.completions.stream(**ask) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion()
    assert streamed.choices[0].message.content == whole.choices[0].message.content
    assert streamed.choices[0].message.role == "assistant"
    assert streamed.choices[0].finish_reason == whole.choices[0].finish_reason


def test_chat_stream_shape(client):
    ask = {"model": "tiny", "messages": HELLO, "max_tokens": 6, "n": 2, "stream": True, "seed": 1}
    chunks = list(
        client.chat.completions.create(**ask, extra_body={"ignore_eos": True}, stream_options={"include_usage": True})
    )
    *chunks, last = chunks
    assert last.choices == []
    assert last.usage.completion_tokens == 12
    for index in range(2):
        mine = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == index]
        assert (mine[0].delta.role, mine[0].delta.content) == ("assistant", "")
        assert all(choice.delta.role is None for choice in mine[1:])
        assert [choice.finish_reason for choice in mine[:-1]] == [None] * (len(mine) - 1)
        assert mine[-1].finish_reason == "length"


def test_chat_parts_history_and_templates(client):
    parts = [{"type": "text", "text": "the cat"}, {"type": "text", "text": "sat"}]
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": parts}]
    answer = client.chat.completions.create(model="tiny", messages=messages, max_tokens=1)
    joined = [*messages[:1], {"role": "user", "content": "the cat\nsat"}]
    assert (
        answer.usage.prompt_tokens
        == client.chat.completions.create(model="tiny", messages=joined, max_tokens=1).usage.prompt_tokens
    )
    begun = [*HELLO, {"role": "assistant", "content": "On the"}]
    more = {"continue_final_message": True, "add_generation_prompt": False, "echo": True}
    answer = client.chat.completions.create(model="tiny", messages=begun, max_tokens=3, extra_body=more)
    assert answer.choices[0].message.content.startswith("On the")


def test_truncation(client):
    def ask(prompt, **more):
        return client.completions.create(model="tiny", prompt=prompt, max_tokens=1, echo=True, extra_body=more)

    cut = ask("the cat sat", truncate_prompt_tokens=1)
    assert cut.usage.prompt_tokens == 1
    assert cut.choices[0].text.startswith(" sat")
    assert ask("the cat sat " * 1000, truncate_prompt_tokens=-1).usage.prompt_tokens > 100
    chat = client.chat.completions.create(model="tiny", messages=HELLO, extra_body={"truncate_prompt_tokens": 3})
    assert chat.usage.prompt_tokens == 3
    for wrong in (0, -2, 10**6):
        with pytest.raises(openai.BadRequestError, match="truncate_prompt_tokens"):
            ask("the cat", truncate_prompt_tokens=wrong)


def test_unknown_fields_are_ignored(client):
    answer = client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=1, user="me", store=False, metadata={"a": "b"},
        extra_body={"no_such_field": 1, "response_format": {"type": "text"}, "tool_choice": "none"},
    )  # fmt: skip
    assert answer.choices


@pytest.mark.parametrize(
    "more",
    [
        {"guided_choice": ["a"]},
        {"best_of": 3},
        {"modalities": ["text", "audio"]},
    ],
)
def test_what_is_not_there_is_refused(client, more):
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(model="tiny", messages=HELLO, extra_body=more)
    assert caught.value.status_code == 501
    assert caught.value.param == next(iter(more))
    assert "not supported" in str(caught.value)


def test_images_are_refused(client):
    image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    with pytest.raises(openai.APIStatusError, match="text only"):
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": image}])


def test_errors_are_typed(client):
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-4", messages=HELLO)
    assert missing.value.status_code == 404
    assert missing.value.param == "model"
    assert missing.value.type == "NotFoundError"
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model="tiny", prompt="a", max_tokens=600)
    for number in ("512", "600", "1"):
        assert number in str(bad.value)


def test_async_clients_at_once(server):
    async def run():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:

            async def one(seed):
                stream = await client.chat.completions.create(
                    model="tiny", messages=HELLO, max_tokens=20, seed=seed, stream=True
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            async def whole(seed):
                answer = await client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=20, seed=seed)
                return answer.choices[0].message.content

            streamed = await asyncio.gather(*[one(seed) for seed in range(32)])
            assert streamed == await asyncio.gather(*[whole(seed) for seed in range(32)])

    asyncio.run(run())
