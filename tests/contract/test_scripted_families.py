"""Families of models behind the server: however an answer is cut into tokens, its stream and its whole say the same."""

import itertools
import json
import re

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.testing import tokenizer
from octavo.testing.scripted import Scripted, model
from octavo.testing.served import PATIENCE

THINK = ("<think>", "</think>")
KIMI = tuple(
    f"<|{name}|>"
    for name in (
        "tool_calls_section_begin", "tool_call_begin", "tool_call_argument_begin", "tool_call_end",
        "tool_calls_section_end",
    )
)  # fmt: skip
#: Name -> (special tokens, how get_weather and now are called).
FAMILIES = {
    "qwen3_coder": (
        ("<tool_call>", "</tool_call>"),
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nÅl 🙂 </b>\n</parameter>\n<parameter=days>\n3\n"
        "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
    ),
    "kimi_k2": (
        KIMI,
        f'{KIMI[0]}{KIMI[1]}functions.get_weather:0{KIMI[2]}{{"city": "Ål 🙂 </b>", "days": 3}}{KIMI[3]}'
        f"{KIMI[1]}functions.now:1{KIMI[2]}{{}}{KIMI[3]}{KIMI[4]}",
    ),
    "deepseek_v4": (
        (),
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n'
        '<｜DSML｜parameter name="city" string="true">Ål 🙂 </b></｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
    ),
}
CALLS = [("get_weather", {"city": "Ål 🙂 </b>", "days": 3}), ("now", {})]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city", "days"],
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
TEMPLATE = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}" + tokenizer.CHAT_TEMPLATE
REASONING, CONTENT = "Is it 日本?", "Let me look: <b>5 < 6</b>"


class Family:
    """A server, and what its model would write."""

    def __init__(self, server, name):
        self.server, self.calls = server, FAMILIES[name][1]
        self._markers = re.compile("|".join(map(re.escape, (*THINK, *FAMILIES[name][0]))))
        self._client = httpx.Client(base_url=server.url, timeout=PATIENCE)

    def pieces(self, text, cuts):
        """``text`` cut at the places ``cuts``, but never inside a marker that is one token."""
        taken = [match.span() for match in self._markers.finditer(text)]
        places = {at for at in cuts if all(not start < at < end for start, end in taken)}
        places |= {at for span in taken for at in span}
        places = [0, *sorted(at for at in places if 0 < at < len(text)), len(text)]
        return [text[start:end] for start, end in itertools.pairwise(places)]

    def body(self, **more):
        message = {"role": "user", "content": "say it"}
        return {"messages": [message], "tools": TOOLS, "chat_template_kwargs": {"thinking": True}, **more}

    def whole(self, **more):
        answer = self._client.post("/v1/chat/completions", json=self.body(**more))
        assert answer.status_code == 200, answer.text
        choice = answer.json()["choices"][0]
        message = choice["message"]
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
        assert message.get("reasoning_content") == message.get("reasoning")  # as a flag asks
        return message.get("reasoning") or "", message["content"] or "", calls, choice["finish_reason"]

    def stream(self, **more):
        reasoning, content, calls, finish = "", "", [], None
        with self._client.stream("POST", "/v1/chat/completions", json=self.body(stream=True, **more)) as answer:
            lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
        assert lines.pop() == "[DONE]"
        for line in lines:
            chunk = json.loads(line)
            assert "error" not in chunk, chunk
            (choice,) = chunk["choices"]
            delta = choice["delta"]
            assert delta.get("reasoning_content") == delta.get("reasoning")
            reasoning += delta.get("reasoning") or ""
            content += delta.get("content") or ""
            for call in delta.get("tool_calls") or ():
                if "name" in call["function"]:
                    assert (call["index"], call["type"]) == (len(calls), "function")
                    calls.append([call["function"]["name"], ""])
                calls[call["index"]][1] += call["function"].get("arguments") or ""
            finish = choice["finish_reason"]
        return reasoning, content, [tuple(call) for call in calls], finish


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    folder = model(tmp_path_factory.mktemp(request.param), TEMPLATE, specials=(*THINK, *FAMILIES[request.param][0]))
    name = request.param
    flags = ["--reasoning-parser", name.removesuffix("_coder"), "--tool-call-parser", name, "--reasoning-content-alias"]
    with Scripted(folder, [*flags, "--exclude-tools-when-tool-choice-none"]) as server:
        yield Family(server, request.param)


def parsed(told):
    reasoning, content, calls, finish = told
    return reasoning, content, [(name, json.loads(arguments)) for name, arguments in calls], finish


@settings(max_examples=12)
@given(st.data())
def test_any_cut_says_the_same(family, data):
    parts = [f"{REASONING}</think>", CONTENT, "\n\n" + family.calls]
    text = "".join(parts[: data.draw(st.integers(1, 3))])
    cuts = data.draw(st.lists(st.integers(1, len(text) - 1), max_size=60))
    family.server.say("say it", family.pieces(text, cuts))
    told = family.whole()
    assert family.stream() == told
    calls = CALLS if text.endswith(parts[2]) else []
    content = CONTENT if CONTENT in text else ""
    assert parsed(told) == (REASONING, content, calls, "tool_calls" if calls else "stop")


@settings(max_examples=8)
@given(st.data())
def test_an_answer_that_ends_anywhere_says_the_same(family, data):
    """By its length, or by a stop string."""
    text = f"{REASONING}</think>{CONTENT}\n\n{family.calls}"
    family.server.say("say it", text)
    if data.draw(st.booleans()):
        more = {"max_tokens": data.draw(st.integers(1, 120))}
    else:
        at = data.draw(st.integers(0, len(text) - 6))
        more = {"stop": [text[at : at + 6]]}
    told = family.whole(**more)
    assert family.stream(**more) == told
    assert told[3] in ("stop", "tool_calls", "length")[: 3 if "max_tokens" in more else 2]


def test_forced_calls_are_in_the_familys_notation(family):
    family.server.say("say it", f"{REASONING}</think>{family.calls}")
    for more in ({"tool_choice": "required"}, {"tool_choice": "required", "logprobs": True}):
        told = family.whole(**more)
        assert family.stream(**more) == told
        assert parsed(told) == (REASONING, "", CALLS, "tool_calls")


def test_a_thinking_budget(family):
    family.server.say("say it", f"{REASONING}</think>{CONTENT}")
    told = family.whole(thinking_token_budget=3)
    assert told[:2] == (REASONING[:3], CONTENT)


def test_tools_that_may_not_be_called_are_not_shown(family):
    """As the server was started: the prompt is that of a request without tools."""
    sizes = []
    for more in ({"tool_choice": "none"}, {"tools": None}, {}):
        body = {**family.body(), "max_tokens": 1, **more}
        sizes.append(family.server.post("/v1/chat/completions", body)[1]["usage"]["prompt_tokens"])
    assert sizes[0] == sizes[1] < sizes[2]
