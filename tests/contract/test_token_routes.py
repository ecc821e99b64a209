"""/inference/v1/generate: ids in, ids out, the same tokens as the OpenAI routes make."""

import json

import pytest

from octavo.testing.served import VOCAB

PATH = "/inference/v1/generate"
IDS = [5, 9, 31, 77, 120]


def frames(server, body, path=PATH):
    status, said = server.raw(path, json.dumps(body | {"stream": True}).encode())
    assert status == 200, said
    lines = [line for line in said.decode().split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_ids_in_ids_out(server):
    sampling = {"max_tokens": 12, "seed": 3, "ignore_eos": True}
    status, answer = server.post(PATH, {"token_ids": IDS, "sampling_params": sampling})
    assert status == 200
    assert answer["request_id"].startswith("generate-tokens-")
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "length"
    assert len(choice["token_ids"]) == 12
    assert answer["usage"]["total_tokens"] == len(IDS) + 12
    same = server.post("/v1/completions", {"prompt": IDS, "return_token_ids": True, **sampling})[1]["choices"][0]
    assert same["token_ids"] == choice["token_ids"]


def test_a_stream_tells_the_same(server):
    body = {"token_ids": IDS, "sampling_params": {"max_tokens": 9, "seed": 1, "n": 2, "logprobs": 2}}
    whole = server.post(PATH, body)[1]
    chunks = frames(server, body | {"stream_options": {"include_usage": True}})
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    for choice in whole["choices"]:
        mine = [one for chunk in chunks for one in chunk["choices"] if one["index"] == choice["index"]]
        assert [token for one in mine for token in one["token_ids"]] == choice["token_ids"]
        assert [entry for one in mine for entry in one["logprobs"]["content"]] == choice["logprobs"]["content"]
        assert mine[-1]["finish_reason"] == choice["finish_reason"]


def test_stops(server):
    plain = {"max_tokens": 20, "seed": 3, "ignore_eos": True}
    ids = server.post(PATH, {"token_ids": IDS, "sampling_params": plain})[1]["choices"][0]["token_ids"]
    stop = ids[4]
    found = server.post(PATH, {"token_ids": IDS, "sampling_params": plain | {"stop_token_ids": [stop]}})[1]
    (choice,) = found["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    assert choice["token_ids"] == ids[: ids.index(stop) + 1]


def test_scored_prompts_and_names(server):
    body = {"token_ids": IDS, "sampling_params": {"max_tokens": 1, "prompt_logprobs": 0}, "request_id": "mine"}
    status, answer = server.post(PATH, body)
    assert status == 200
    assert answer["request_id"] == "generate-tokens-mine"
    assert answer["prompt_logprobs"][0] is None
    assert len(answer["prompt_logprobs"]) == len(IDS)


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "token_ids"),
        ({"token_ids": []}, 400, "token_ids"),
        ({"token_ids": [VOCAB]}, 400, "token_ids"),
        ({"token_ids": [-1]}, 400, "token_ids"),
        ({"token_ids": ["5"]}, 400, "token_ids.0"),
        ({"token_ids": [5] * 600}, 400, "token_ids"),
        ({"token_ids": IDS, "sampling_params": {"temperature": -1}}, 400, "sampling_params.temperature"),
        ({"token_ids": IDS, "sampling_params": {"temperatur": 0.5}}, 400, "sampling_params.temperatur"),
        ({"token_ids": IDS, "sampling_params": {"max_tokens": 5000}}, 400, "sampling_params.max_tokens"),
        ({"token_ids": IDS, "sampling_params": {"n": 9}}, 400, "sampling_params.n"),
        ({"token_ids": IDS, "sampling_params": {"stop_token_ids": [VOCAB]}}, 400, "sampling_params.stop_token_ids"),
        ({"token_ids": IDS, "sampling_params": {"logprobs": 21}}, 400, "sampling_params.logprobs"),
        ({"token_ids": IDS, "sampling_params": {"structured_outputs": {}}}, 400, "sampling_params.structured_outputs"),
        (
            {"token_ids": IDS, "sampling_params": {"structured_outputs": {"jsn": {}}}},
            400,
            "sampling_params.structured_outputs",
        ),
        (
            {"token_ids": IDS, "sampling_params": {"structured_outputs": {"regex": "a", "after": ["x"]}}},
            400,
            "sampling_params.structured_outputs.after",
        ),
        ({"token_ids": IDS, "sampling_params": []}, 400, "sampling_params"),
        ({"token_ids": IDS, "features": {"mm_hashes": {}}}, 501, "features"),
        ({"token_ids": IDS, "kv_transfer_params": {"do_remote_prefill": True}}, 501, "kv_transfer_params"),
        ({"token_ids": IDS, "priority": 2**40}, 400, "priority"),
        ({"token_ids": IDS, "request_id": "a b"}, 400, "request_id"),
        ({"token_ids": IDS, "cache_salt": ""}, 400, "cache_salt"),
        ({"token_ids": IDS, "model": "other"}, 404, "model"),
        ({"token_ids": IDS, "stream_options": {"include_usage": True}}, 400, "stream_options"),
        (
            {"token_ids": IDS, "stream": True, "sampling_params": {"prompt_logprobs": 1}},
            400,
            "sampling_params.prompt_logprobs",
        ),
    ],
)
def test_what_is_wrong_is_named(server, body, status, param):
    found, answer = server.post(PATH, body)
    assert (found, answer["error"]["param"]) == (status, param), answer
    assert answer["error"]["message"]


def test_fields_that_ask_for_nothing_are_taken(server):
    sampling = {"max_tokens": 1, "extra_args": None, "output_kind": 2, "logits_processors": None, "best_of": None}
    body = {"token_ids": IDS, "sampling_params": sampling, "features": None, "kv_transfer_params": None}
    assert server.post(PATH, body)[0] == 200


def test_structured_outputs(server):
    body = {"token_ids": IDS, "sampling_params": {"max_tokens": 20, "structured_outputs": {"choice": ["red", "blue"]}}}
    (choice,) = server.post(PATH, body)[1]["choices"]
    text = server.post("/detokenize", {"tokens": choice["token_ids"]})[1]["prompt"]
    assert text.removesuffix("<|end|>") in ("red", "blue")
