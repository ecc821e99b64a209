"""Structured outputs over HTTP: what is asked is what comes, and what is wrong is a 400 that says so."""

import json
import re
import threading

import jsonschema
import pytest

from octavo.errors import BadRequest
from octavo.front.server.openai.structured import structured
from octavo.testing.served import PATIENCE

SCHEMA = {
    "type": "object",
    "properties": {
        "ok": {"type": "boolean"},
        "size": {"enum": ["S", "M", "L"]},
        "n": {"type": "integer", "maximum": 9, "minimum": 0},
    },
    "required": ["ok", "size", "n"],
    "additionalProperties": False,
}
#: The library's parser goes deeper than a stack.
DEEP = "start: a0\n" + "\n".join(f"a{i}: a{i + 1} a{i + 1}" for i in range(5000)) + '\na5000: "x"'
TIGHT = {"disable_any_whitespace": True}


def ask(server, body, path="/v1/completions"):
    prompt = (
        {"prompt": "say"} if path.endswith("/v1/completions") else {"messages": [{"role": "user", "content": "say"}]}
    )
    return server.post(path, {"max_tokens": 200, **prompt, **body})


def said(answer) -> str:
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "stop", answer
    return choice["text"] if "text" in choice else choice["message"]["content"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_answers_obey(server, path):
    for seed in range(3):
        status, answer = ask(server, {"seed": seed, "structured_outputs": {"json": SCHEMA, **TIGHT}}, path)
        assert status == 200, answer
        jsonschema.validate(json.loads(said(answer)), SCHEMA)
        status, answer = ask(server, {"seed": seed, "structured_outputs": {"regex": "[ab]{3}-\\d\\d"}}, path)
        assert re.fullmatch(r"[ab]{3}-\d\d", said(answer))
        status, answer = ask(server, {"seed": seed, "structured_outputs": {"choice": ["yes", "no", "日本"]}}, path)
        assert said(answer) in ("yes", "no", "日本")
        grammar = 'root ::= "a" item{2}\nitem ::= [0-9] "," | "x"'
        status, answer = ask(server, {"seed": seed, "structured_outputs": {"grammar": grammar}}, path)
        assert re.fullmatch(r"a([0-9],|x){2}", said(answer)), answer


def test_response_format_of_every_type(server):
    schema = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}
    status, answer = ask(server, {"response_format": schema}, "/v1/chat/completions")
    assert status == 200
    if answer["choices"][0]["finish_reason"] == "stop":  # spaces are free
        jsonschema.validate(json.loads(said(answer)), SCHEMA)
    assert ask(server, {"response_format": {"type": "text"}})[0] == 200
    status, answer = ask(server, {"response_format": {"type": "json_object"}})
    assert status == 200
    assert answer["choices"][0]["text"].startswith("{")
    tag = {
        "type": "structural_tag",
        "format": {
            "type": "sequence",
            "elements": [{"type": "const_string", "value": "<a>"}, {"type": "regex", "pattern": "[xy]"}],
        },
    }
    status, answer = ask(server, {"response_format": tag})
    assert re.fullmatch("<a>[xy]", said(answer))


def test_many_answers_of_one_grammar_differ_and_obey(server):
    status, answer = ask(server, {"n": 4, "seed": 1, "structured_outputs": {"regex": "[a-z]{8}"}})
    texts = {choice["text"] for choice in answer["choices"]}
    assert status == 200
    assert len(texts) == 4
    assert all(re.fullmatch("[a-z]{8}", text) for text in texts)


def test_a_stream_obeys(server):
    status, data = server.raw(
        "/v1/completions",
        json.dumps({"prompt": "x", "stream": True, "structured_outputs": {"choice": ["maybe"]}}).encode(),
    )
    assert status == 200
    events = [json.loads(line[6:]) for line in data.decode().splitlines() if line.startswith("data: {")]
    assert "".join(event["choices"][0]["text"] for event in events if event["choices"]) == "maybe"


WRONG = [
    ({"structured_outputs": {"json": {"type": 5}}}, "type"),
    ({"structured_outputs": {"json": {"type": "string", "pattern": "["}}}, "regex"),
    ({"structured_outputs": {"json": {"$ref": "#"}}}, "no text"),
    ({"structured_outputs": {"json": {"not": {"type": "string"}}}}, "'not'"),
    ({"structured_outputs": {"json": {"type": "string", "format": "colour"}}}, "'format' 'colour'"),
    ({"structured_outputs": {"json": "{"}}, "JSON"),
    ({"structured_outputs": {"json": [1]}}, "json must be"),
    ({"structured_outputs": {"regex": "(a"}}, "regex"),
    ({"structured_outputs": {"regex": "a(?=b)"}}, "look"),
    ({"structured_outputs": {"regex": "(" * 10_000 + ")" * 10_000}}, "deep"),
    ({"structured_outputs": {"choice": []}}, "choice"),
    ({"structured_outputs": {"choice": ["a", 1]}}, "choice"),
    ({"structured_outputs": {"grammar": "start: nope"}}, "nope"),
    ({"structured_outputs": {"json": {}, "regex": "a"}}, "exactly one"),
    ({"structured_outputs": {"json_object": False, "disable_any_whitespace": True}}, "exactly one"),
    ({"structured_outputs": {"jsn": {}}}, "did you mean 'json'"),
    ({"structured_outputs": {"lark": "start: /a/"}}, "no field"),
    ({"structured_outputs": {"regex": "a"}, "min_tokens": 4}, "min_tokens"),
    ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "exclude"),
    ({"structured_outputs": {"structural_tag": {"format": {"type": "odd"}}}}, "odd"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, "schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"uniqueItems": True}}}},
        "'uniqueItems'",
    ),
]


@pytest.mark.parametrize(("body", "words"), WRONG, ids=[words for _, words in WRONG])
def test_what_is_wrong_is_a_400_before_the_first_byte(server, body, words):
    for stream in (False, True):
        status, answer = ask(server, {**body, "stream": stream})
        assert status == 400, answer
        error = answer["error"]
        assert words in error["message"]
        assert len(error["message"]) < 700
        assert error["param"].partition(".")[0] in ("min_tokens", *body)


def test_hostile_grammars_cost_their_senders_a_400_and_nobody_else_a_stall(server):
    got: list[str] = []
    status = []

    def neighbour():
        code, data = server.raw(
            "/v1/completions",
            json.dumps({"prompt": "x", "stream": True, "max_tokens": 300, "ignore_eos": True}).encode(),
        )
        status.append(code)
        got.extend(line for line in data.decode().splitlines() if line.startswith("data: "))

    thread = threading.Thread(target=neighbour)
    thread.start()
    deep: dict = {}
    for _ in range(200):
        deep = {"properties": {"a": deep}}
    hostile = [
        {"json": {"enum": list(range(20_000))}},
        {"json": deep},
        {"json": "[" * 100_000},
        {"json": {"type": "array", "minItems": 1_000_000, "items": {"type": "array", "minItems": 1_000_000}}},
        {"grammar": DEEP},
        {"grammar": "start: " + "(" * 20_000 + "a" + ")" * 20_000},
        {"regex": "((a{1,1000}){1,1000}){1,1000}" * 20},
        {"regex": "(" + "|".join("a" * i + ".*b" for i in range(1, 400)) + "){1,900}"},
    ]
    for one in hostile:
        code, answer = ask(server, {"structured_outputs": one, "max_tokens": 4})
        busy = code == 500 and "too busy" in answer["error"]["message"]  # others have the processor: nobody's fault
        assert code in (200, 400) or busy, answer
    thread.join(PATIENCE)
    assert status == [200]
    assert got[-1] == "data: [DONE]"
    assert said(ask(server, {"structured_outputs": {"choice": ["fine"]}})[1]) == "fine"


def test_the_mapping_of_nothing_is_nothing():
    assert structured(None, None) is None
    assert structured({"type": "text"}, {}) is None
    with pytest.raises(BadRequest):
        structured({}, None)
