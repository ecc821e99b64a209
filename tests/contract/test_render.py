"""render -> generate -> derender says what the one route says."""

import json

import pytest

CHAT = {
    "messages": [{"role": "user", "content": "Hello 日本"}],
    "max_tokens": 24,
    "seed": 5,
    "temperature": 0.8,
    "ignore_eos": True,
}
COMPLETION = {"prompt": ["the cat", "a 🙂"], "max_tokens": 16, "seed": 7, "ignore_eos": True}


def post(server, path, body):
    status, answer = server.post(path, body)
    assert status == 200, answer
    return answer


def same(left, right):
    """Without what a request of its own has: id and time, and what the engine's cache did."""
    for one in (left, right):
        one.pop("id")
        one.pop("created")
        one["usage"].pop("prompt_tokens_details")
    assert left == right


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"n": 3},
        {"logprobs": True, "top_logprobs": 2, "n": 2},
        {"ignore_eos": False, "max_tokens": 300, "logit_bias": {"1": 3}},
        {"skip_special_tokens": False},
        {"stop": ["e", "a"], "max_tokens": 200},
        {"stop": ["e", "a"], "include_stop_str_in_output": True, "max_tokens": 200},
        {"stop_token_ids": list(range(100, 180)), "max_tokens": 200},
    ],
    ids=lambda more: ",".join(more) or "plain",
)
def test_chat_in_three_steps(server, more):
    body = CHAT | more
    whole = post(server, "/v1/chat/completions", body)
    rendered = post(server, "/v1/chat/completions/render", body)
    made = post(server, "/inference/v1/generate", rendered)
    ask = {
        "generate_response": made,
        "chat_request": body,
        "prompt_tokens": len(rendered["token_ids"]),
        "prompt_token_ids": rendered["token_ids"],
    }
    same(post(server, "/v1/chat/completions/derender", ask), whole)


@pytest.mark.parametrize("more", [{}, {"n": 2}, {"logprobs": 1}, {"stop": "e", "max_tokens": 100}])
def test_completions_in_three_steps(server, more):
    body = COMPLETION | more
    whole = post(server, "/v1/completions", body)
    rendered = post(server, "/v1/completions/render", body)
    made = [post(server, "/inference/v1/generate", one) for one in rendered]
    ask = {
        "generate_responses": made,
        "completion_request": body,
        "prompt_tokens": [len(one["token_ids"]) for one in rendered],
    }
    same(post(server, "/v1/completions/derender", ask), whole)


def test_what_is_rendered_is_complete(server):
    rendered = post(server, "/v1/chat/completions/render", CHAT | {"max_tokens": None, "stream": True})
    tokens = post(server, "/tokenize", {"messages": CHAT["messages"]})
    assert rendered["token_ids"] == tokens["tokens"]
    sampling = rendered["sampling_params"]
    assert sampling["max_tokens"] == tokens["max_model_len"] - tokens["count"]
    assert (sampling["temperature"], sampling["seed"], sampling["top_p"]) == (0.8, 5, 1.0)
    assert rendered["stream"] is True
    assert rendered["model"] == "tiny"


def test_vllms_short_form(server):
    made = {"request_id": "r", "choices": [{"index": 0, "token_ids": [76, 77], "finish_reason": "stop"}]}
    answer = post(server, "/v1/chat/completions/derender", {"model": "tiny", "generate_response": made})
    assert answer["choices"][0]["message"]["content"] == post(server, "/detokenize", {"tokens": [76, 77]})["prompt"]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 2
    answer = post(server, "/v1/completions/derender", {"generate_responses": [made]})
    assert answer["choices"][0]["text"] == post(server, "/detokenize", {"tokens": [76, 77]})["prompt"]


ONE = {"choices": [{"token_ids": [5]}]}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions/render", {"messages": []}, 400),
        ("/v1/chat/completions/render", CHAT | {"temperature": 9}, 400),
        ("/v1/chat/completions/render", CHAT | {"max_tokens": 100000}, 400),
        ("/v1/chat/completions/render", CHAT | {"n": 100}, 400),
        ("/v1/completions/render", {"prompt": [7] * 600}, 400),
        ("/v1/completions/render", {"prompt": "a", "use_beam_search": True}, 501),
        ("/v1/completions/render", {"prompt": "a", "suffix": "b"}, 501),
        ("/v1/completions/render", {"prompt": "a", "model": "b"}, 404),
        ("/v1/chat/completions/derender", {}, 400),
        ("/v1/chat/completions/derender", {"generate_response": ONE, "stream": True}, 501),
        ("/v1/chat/completions/derender", {"generate_response": ONE, "prompt_tokens": -1}, 400),
        ("/v1/chat/completions/derender", {"generate_response": ONE, "model": "x"}, 404),
        ("/v1/chat/completions/derender", {"generate_response": {"choices": []}}, 400),
        ("/v1/chat/completions/derender", {"generate_response": {"choices": [{"token_ids": [10**9]}]}}, 400),
        ("/v1/chat/completions/derender", {"generate_response": {"choices": [{"token_ids": [-1]}]}}, 400),
        ("/v1/chat/completions/derender", {"generate_response": {"choices": [{"index": 1}]}}, 400),
        ("/v1/chat/completions/derender", {"generate_response": {"choices": [{"token_ids": [5] * 600}]}}, 400),
        ("/v1/chat/completions/derender", {"generate_response": {"choices": [{"finish_reason": None}]}}, 501),
        (
            "/v1/chat/completions/derender",
            {"generate_response": {"choices": [{"token_ids": [5], "logprobs": {"content": [{"token": "x"}]}}]}},
            400,
        ),
        ("/v1/completions/derender", {"generate_responses": []}, 400),
        ("/v1/completions/derender", {"generate_responses": [ONE, ONE], "prompt_tokens": [1]}, 400),
        ("/v1/completions/derender", {"generate_responses": [ONE, {"choices": [{}, {"index": 1}]}]}, 400),
    ],
)
def test_what_is_wrong_is_said(server, path, body, status):
    found, answer = server.post(path, body)
    assert found == status, answer
    assert answer["error"]["message"]


def test_the_document_has_them(server):
    paths = json.loads(server.get("/openapi.json")[1])["paths"]
    for path in ("/v1/chat/completions/render", "/v1/completions/derender", "/inference/v1/generate"):
        assert {"200", "400", "401", "501"} <= set(paths[path]["post"]["responses"])
