"""Over HTTP, an answer that repeats itself comes in steps of several tokens: streams, log-probabilities and stops are
what they are without."""

import json
import urllib.request

import pytest

from octavo.testing.scripted import Scripted, model
from octavo.testing.served import PATIENCE

SAYS = "red green blue, red green blue, red green blue, red green blue, red. " * 3 + "The end: 日本 🙂🙂🙂."
FLAGS = {"method": "ngram", "num_speculative_tokens": 6, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
BODY = {"model": "scripted", "prompt": "colours", "max_tokens": 400, "logprobs": 1, "temperature": 0}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = model(tmp_path_factory.mktemp("drafts"), drafts=6)
    with Scripted(folder, ["--speculative-config", json.dumps(FLAGS)]) as one:
        one.say("colours", SAYS)
        yield one


def events(server, body):
    request = urllib.request.Request(
        server.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        lines = [line[6:].strip() for line in answer if line.startswith(b"data: ")]
    assert lines.pop() == b"[DONE]"
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("more", [{}, {"stop": "end"}, {"stop": "blue, red green blue, red. red"}, {"max_tokens": 77}])
def test_a_stream_in_steps_of_many_tokens_is_the_whole_answer(server, more):
    status, whole = server.post("/v1/completions", BODY | more)
    assert status == 200
    choice = whole["choices"][0]
    assert choice["text"] == SAYS.partition(more.get("stop", "\0"))[0] or "max_tokens" in more
    told = events(server, BODY | more | {"stream": True, "stream_options": {"include_usage": True}})
    assert told[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    pieces = [event["choices"][0] for event in told[:-1]]
    assert "".join(piece["text"] for piece in pieces) == choice["text"]
    assert pieces[-1]["finish_reason"] == choice["finish_reason"] == ("length" if "max_tokens" in more else "stop")
    tokens = [token for piece in pieces if piece["logprobs"] for token in piece["logprobs"]["tokens"]]
    assert tokens == choice["logprobs"]["tokens"]
    if "max_tokens" in more:
        assert len(tokens) == 77 == whole["usage"]["completion_tokens"]


def test_drafts_are_counted(server):
    server.post("/v1/completions", BODY)
    counts = {
        line.rpartition(" ")[0].partition("{")[0]: float(line.rpartition(" ")[2])
        for line in server.get("/metrics")[1].decode().splitlines()
        if line.startswith("vllm:spec_decode_num_") and "per_pos" not in line and "created" not in line
    }
    accepted, drafts = counts["vllm:spec_decode_num_accepted_tokens_total"], counts["vllm:spec_decode_num_drafts_total"]
    assert counts["vllm:spec_decode_num_draft_tokens_total"] >= accepted > drafts > 0
