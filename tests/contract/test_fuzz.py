"""Whatever a client sends, the answer is an answer: never a 5xx but 501, and always OpenAI's error body."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.front.server.openai.schema import ChatBody, CompletionBody

NUMBERS = st.integers(-3, 12) | st.sampled_from([0.5, -0.5, 2**31, 2**63, -(2**63) - 1, 1e30, 10**40])
LEAVES = st.none() | st.booleans() | NUMBERS | st.text(max_size=6)
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)
PROMPTS = st.text(min_size=1, max_size=30) | st.lists(st.integers(0, 330), min_size=1, max_size=20)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant", "tool", "x"]), "content": JSON}),
    max_size=3,
)
#: Values that are right more often than not.
LIKELY = {
    "max_tokens": st.integers(-1, 8),
    "n": st.integers(0, 4),
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0, 1),
    "stop": st.text(min_size=1, max_size=2) | st.lists(st.text(max_size=3), max_size=3),
    "logprobs": st.integers(-1, 25) | st.booleans(),
    "seed": st.integers(-(2**63), 2**63 - 1),
    "stop_token_ids": st.lists(st.integers(0, 330), max_size=4),
    "logit_bias": st.dictionaries(st.integers(0, 330).map(str), st.floats(-200, 200), max_size=3),
    "stream": st.booleans(),
}


def bodies(cls, **own):
    fields = {name: LIKELY.get(name, JSON) | JSON for name in cls.model_fields if name not in own}
    fields["model"] = st.sampled_from(["tiny", "also", "", None]) | JSON
    some = st.dictionaries(st.sampled_from(sorted(fields)), st.none(), max_size=5).flatmap(
        lambda names: st.fixed_dictionaries({name: fields[name] for name in names})
    )
    return st.builds(lambda more, base: base | more, some, st.fixed_dictionaries(own))


def answered(server, path, body):
    status, answer = server.raw(path, json.dumps(body).encode())
    assert status < 500 or status == 501, (status, answer)
    if status != 200:
        error = json.loads(answer)["error"]
        assert error["code"] == status
        assert error["message"].strip()
    elif answer.startswith(b"data: "):
        assert answer.endswith(b"data: [DONE]\n\n")
    else:
        assert json.loads(answer)["choices"]


@settings(max_examples=120)
@given(body=bodies(CompletionBody, prompt=PROMPTS | JSON))
def test_completions(server, body):
    answered(server, "/v1/completions", body)


@settings(max_examples=120)
@given(body=bodies(ChatBody, messages=MESSAGES | JSON))
def test_chat(server, body):
    answered(server, "/v1/chat/completions", body)


@settings(max_examples=60)
@given(
    data=st.binary(max_size=60) | st.text(max_size=40).map(str.encode),
    path=st.sampled_from(["/tokenize", "/detokenize", "/v1/completions"]),
)
def test_bytes(server, data, path):
    status, answer = server.raw(path, data)
    assert 400 <= status < 500
    assert json.loads(answer)["error"]["code"] == status


@settings(max_examples=60)
@given(body=st.fixed_dictionaries({"tokens": st.lists(st.integers(-5, 400), max_size=9) | JSON}))
def test_detokenize(server, body):
    status, answer = server.raw("/detokenize", json.dumps(body).encode())
    assert status in (200, 400)
    assert json.loads(answer)
