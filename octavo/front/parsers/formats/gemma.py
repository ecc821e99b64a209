"""Gemma 4: keys without quotes, strings between quotes that are a special token."""

from octavo.front.parsers.spec import ARGS, BETWEEN, CONTENT, NAME, WRAP, Example, Json, ParserSpec, Think, To, Wire
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
    grammar=Wire("", f"{_CALL}call:{{name}}", _CALL_END),
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

_START, _STOP, _ESCAPE = "<start_function_call>", "<end_function_call>", "<escape>"

FUNCTIONGEMMA = ParserSpec(
    name="functiongemma",
    table={
        CONTENT: {_START: WRAP},
        WRAP: {"call:": NAME, _STOP: CONTENT},
        NAME: {"{": To(ARGS, keep=True), _STOP: CONTENT, _START: WRAP},
        ARGS: {_STOP: CONTENT, _START: WRAP},
        BETWEEN: {_STOP: CONTENT, "call:": NAME},
    },
    args={ARGS: Json(Notation(quotes="", mark=_ESCAPE, bare=True))},
    tokens=(_START, _STOP, _ESCAPE, "<start_function_response>"),
    hints=(_START, _STOP, _ESCAPE),
    grammar=Wire("", f"{_START}call:{{name}}", _STOP),
    examples=(
        Example(
            f"Ok.{_START}call:get_weather{{city:{_ESCAPE}Paris{_ESCAPE},days:3}}{_STOP}{_START}call:now{{}}{_STOP}",
            content="Ok.",
            calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
        ),
        Example(
            f"{_START}call:get_weather{{city:Paris,days:{_ESCAPE}3{_ESCAPE}}}{_STOP}",
            calls=(("get_weather", {"city": "Paris", "days": 3}),),
        ),
        Example(f"{_START}call:{{a:1}}{_STOP}", content=f"{_START}call:{{a:1}}{_STOP}"),
    ),
)
