"""A whole server with real models: what it says offline, it says over HTTP."""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from octavo.testing import tiny, tokenizer
from octavo.testing.served import Served

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "smollm2.json").read_text())


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    tiny.write_hf(folder, "Qwen3ForCausalLM")
    tokenizer.write(folder, size=320)
    flags = [str(folder), "--dtype", "float32", "--threads", "1", "--served-model-name", "tiny"]
    server = Served(flags, worker=None)
    try:
        server.ready()
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            yield client
    finally:
        server.stop()


def test_log_probabilities(small):
    ask = {"model": "tiny", "prompt": "the cat sat", "max_tokens": 8, "temperature": 0, "logprobs": 3, "echo": True}
    (whole,) = small.completions.create(**ask, extra_body={"ignore_eos": True}).choices
    said = whole.logprobs
    assert len(said.tokens) == len(said.token_logprobs) == 3 + 8
    assert said.token_logprobs[0] is None
    for chosen, top in zip(said.token_logprobs[1:], said.top_logprobs[1:], strict=True):
        assert chosen <= max(top.values()) <= 0
        assert 3 <= len(top) <= 4
    # Greedy: what was said is the likeliest.
    for chosen, top in zip(said.token_logprobs[3:], said.top_logprobs[3:], strict=True):
        assert math.isclose(chosen, max(top.values()), abs_tol=1e-5)
    scored = small.completions.create(
        model="tiny", prompt=whole.text, max_tokens=0, logprobs=3, extra_body={"echo": True}
    ).choices[0]
    assert scored.text == whole.text


def test_a_chat_stream_has_the_log_probabilities_of_the_whole(small):
    ask = {
        "model": "tiny", "messages": [{"role": "user", "content": "the cat"}], "max_tokens": 8, "seed": 1,
        "logprobs": True, "top_logprobs": 2,
    }  # fmt: skip
    whole = small.chat.completions.create(**ask).choices[0].logprobs.content
    streamed = [
        entry
        for chunk in small.chat.completions.create(**ask, stream=True)
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]
    assert [entry.token for entry in streamed] == [entry.token for entry in whole]
    for one, other in zip(streamed, whole, strict=True):
        assert math.isclose(one.logprob, other.logprob, abs_tol=1e-4)
        assert [top.token for top in one.top_logprobs] == [top.token for top in other.top_logprobs]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("more", [{"structured_outputs": {"regex": "[ab]{5}"}}, {"bad_words": ["x"]}])
def test_limits_that_leave_no_token_are_the_requests_fault(small, more, stream):
    (token,) = small.completions.create(
        model="tiny", prompt="x", max_tokens=1, extra_body={"return_token_ids": True}
    ).choices[0].prompt_token_ids  # fmt: skip
    body = {"model": "tiny", "prompt": "the cat", "extra_body": more | {"allowed_token_ids": [token]}}
    with pytest.raises(openai.APIError, match=r"no token is left|leave none") as caught:
        for _ in small.completions.create(**body, stream=stream):
            pass
    assert caught.value.body["code"] == 400


def test_neighbours_change_nothing(small):
    prompts = [[4 + (index * 7 + step) % 250 for step in range(5 + index)] for index in range(12)]
    ask = {"model": "tiny", "max_tokens": 12, "seed": 7, "extra_body": {"ignore_eos": True, "return_token_ids": True}}
    together = small.completions.create(prompt=prompts, **ask).choices
    for prompt, choice in zip(prompts, together, strict=True):
        assert small.completions.create(prompt=prompt, **ask).choices[0].token_ids == choice.token_ids


@pytest.mark.model
def test_the_recorded_ids_over_http():
    """All at once: what a request says does not depend on its neighbours."""

    def ask(case):
        body = {"messages": [{"role": "user", "content": case["prompt"]}], "temperature": 0, "return_token_ids": True}
        status, answer = server.post("/v1/chat/completions", body | {"max_tokens": len(case["output_ids"])})
        assert status == 200, answer
        return answer["prompt_token_ids"], answer["choices"][0]["token_ids"]

    server = Served(["--dtype", "float32", "--threads", "1"], worker=None)
    try:
        server.ready()
        with ThreadPoolExecutor(len(GOLDEN)) as pool:
            answers = list(pool.map(ask, GOLDEN))
    finally:
        server.stop()
    assert answers == [(case["prompt_ids"], case["output_ids"]) for case in GOLDEN]
