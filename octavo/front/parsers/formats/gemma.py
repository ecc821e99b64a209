"""Gemma 4: keys without quotes, strings between quotes that are a special token."""

from octavo.front.parsers.spec import ARGS, BETWEEN, CONTENT, NAME, WRAP, Example, Json, ParserSpec, Think, To
from octavo.front.parsers.values import Notation

_CALL, _CALL_END, _QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'

GEMMA4 = ParserSpec(
    name="gemma4",
    think=Think(
        "<|channel>", "<channel|>", kwargs=("enable_thinking",), default=False, reenter=True, label="thought\n"
    ),
    table={
        CONTENT: {_CALL: WRAP},
        WRAP: {"call:": NAME, _CALL_END: CONTENT},
        NAME: {"{": To(ARGS, keep=True), _CALL_END: CONTENT, _CALL: WRAP},
        ARGS: {_CALL_END: CONTENT, _CALL: WRAP},
        BETWEEN: {_CALL_END: CONTENT, _CALL: WRAP, "call:": NAME},
    },
    args={ARGS: Json(Notation(quotes="", mark=_QUOTE, bare=True))},
    tokens=("<|channel>", "<channel|>", _CALL, _CALL_END, _QUOTE, "<|turn>", "<turn|>", "<|tool_response>"),
    hints=(_CALL, "call:", _QUOTE),
    examples=(
        Example(
            f"<|channel>thought\nNeed it.\n<channel|>Ok.{_CALL}call:get_weather{{city:{_QUOTE}Paris{_QUOTE},days:3}}"
            f"{_CALL_END}{_CALL}call:now{{}}{_CALL_END}",
            reasoning="Need it.\n",
            content="Ok.",
            calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
        ),
        Example(
            f'thought\nHm<channel|>{_CALL}call:f{{a:{_QUOTE}x, "X" {{}}{_QUOTE},flag:true,opts:{{u:1}},tags:[1,2,'
            f"{_QUOTE}z{_QUOTE}],maybe:null,word:left}}{_CALL_END}",
            reasoning="Hm",
            calls=(
                (
                    "f",
                    {
                        "a": 'x, "X" {}',
                        "flag": True,
                        "opts": {"u": 1},
                        "tags": [1, 2, "z"],
                        "maybe": None,
                        "word": "left",
                    },
                ),
            ),
        ),
    ),
)
