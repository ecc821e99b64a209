"""The scripted model itself: it says what it was given, through the whole server."""

import pytest

from octavo.testing.scripted import Scripted, model


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = model(tmp_path_factory.mktemp("scripted"), specials=("<think>", "</think>"), added=("<tool_call>",))
    with Scripted(folder) as found:
        yield found


def ask(server, prompt, **more):
    body = {"prompt": prompt, "max_tokens": 200, "return_token_ids": True, **more}
    status, answer = server.post("/v1/completions", body)
    assert status == 200, answer
    return answer


def texts(answer):
    return [choice["text"] for choice in answer["choices"]]


def test_a_key_gets_its_answer(server):
    server.say_all({"cat": ["It sat."], "dog": ["日本 🙂 ran"]})
    assert texts(ask(server, "the cat")) == ["It sat."]
    assert texts(ask(server, "the cat and the dog")) == ["日本 🙂 ran"]
    assert texts(ask(server, "the dog and the cat")) == ["It sat."]
    assert texts(ask(server, "a bird")) == ["There is no script for this prompt."]
    assert ask(server, "the cat")["choices"][0]["finish_reason"] == "stop"


def test_answers_in_turn(server):
    server.say("two", "first", "second")
    assert sorted(texts(ask(server, "two", n=2))) == ["first", "second"]
    assert texts(ask(server, "two")) == ["first"]
    assert texts(ask(server, "two")) == ["second"]
    server.say("two", "third")
    assert texts(ask(server, "two")) == ["third"]


def test_special_tokens_and_pieces(server):
    server.say_all({"marks": ["<think>a</think>b<tool_call>"], "pieces": [["<thi", "nk>", 36, "</think>"]]})
    shown = ask(server, "marks", skip_special_tokens=False)["choices"][0]
    assert shown["text"] == "<think>a</think>b<tool_call>"
    assert len(shown["token_ids"]) == 6  # with the end of the sequence
    assert texts(ask(server, "marks")) == ["ab<tool_call>"]
    plain = ask(server, "pieces")["choices"][0]
    assert plain["text"].startswith("<think>")
    assert len(plain["token_ids"]) > 8


def test_prompts_out_of_the_prefix_cache_are_read_too(server):
    server.say("needle", "found")
    prompt = "needle " + "hay " * 60
    for _ in range(2):
        answer = ask(server, prompt)
        assert texts(answer) == ["found"]
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 100
