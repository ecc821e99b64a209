"""MiniMax M2: a tag a function and a tag a parameter, in a wrapper of its own. M3: nested elements, each tag marked."""

from dataclasses import replace

from octavo.front.parsers.spec import (
    ARGS,
    BETWEEN,
    CONTENT,
    NAME,
    WRAP,
    Elements,
    Example,
    ParserSpec,
    Tags,
    Think,
    To,
    Trim,
    Wire,
    attribute_name,
    tag_rows,
)

_BEGIN, _END = "<minimax:tool_call>", "</minimax:tool_call>"
_ENDS = {"</invoke>": BETWEEN, _END: CONTENT, "<invoke": NAME}

MINIMAX_M2 = ParserSpec(
    name="minimax_m2",
    think=Think("<think>", "</think>"),
    table={
        CONTENT: {_BEGIN: WRAP, "<invoke name=": To(NAME, line=True)},
        WRAP: {"<invoke": NAME, _END: CONTENT},
        NAME: {">": ARGS, "</invoke>": BETWEEN, _END: CONTENT},
        **tag_rows(_ENDS, key="<parameter", key_end=">", value_end="</parameter>"),
        BETWEEN: {"<invoke": NAME, _BEGIN: WRAP, _END: CONTENT},
    },
    args={ARGS: Tags(Trim.LINE)},
    header=attribute_name,
    tokens=("<think>", "</think>", _BEGIN, _END),
    hints=("minimax:tool_call", "<invoke name=", "<parameter name="),
    grammar=Wire(
        f"{_BEGIN}\n", '<invoke name="{name}">\n', "</invoke>\n", _END,
        value=('<parameter name="{key}">', "</parameter>\n"),
    ),
    examples=(
        Example(
            f'Think\n</think>\n\nOk\n{_BEGIN}\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n'
            f'<parameter name="days">3</parameter>\n</invoke>\n<invoke name="now">\n</invoke>\n{_END}',
            reasoning="Think\n",
            content="Ok",
            calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
        ),
        Example(
            "</think><invoke name='get_weather'><parameter name=city>\n Paris\n</parameter></invoke>\n"
            f"{_BEGIN}<invoke name=now></invoke>",
            calls=(("get_weather", {"city": " Paris"}), ("now", {})),
        ),
    ),
)  # fmt: skip

#: The reasoning parser that leaves reasoning in the content, in its tags.
APPEND_THINK = replace(
    MINIMAX_M2,
    name="minimax_m2_append_think",
    think=Think("<think>", "</think>", inline=True),
    examples=(
        MINIMAX_M2.examples[0]._replace(reasoning="", content="<think>Think\n</think>\n\nOk"),
        Example("Think", content="<think>Think"),
    ),
)

_MARK = "]<]minimax[>["
_M3_BEGIN, _M3_END = f"{_MARK}<tool_call>", f"{_MARK}</tool_call>"
_CALL, _CALL_END = f"{_MARK}<invoke name=", f"{_MARK}</invoke>"


def _e(name: str, value: str) -> str:
    return f"{_MARK}<{name}>{value}{_MARK}</{name}>"


MINIMAX_M3 = ParserSpec(
    name="minimax_m3",
    think=Think("<mm:think>", "</mm:think>", on={"thinking_mode": ("enabled",)}, default=False),
    table={
        CONTENT: {_M3_BEGIN: WRAP},
        WRAP: {_CALL: NAME, _M3_END: CONTENT},
        NAME: {">": ARGS, _CALL_END: BETWEEN, _M3_END: CONTENT},
        ARGS: {_CALL_END: BETWEEN, _M3_END: CONTENT, _CALL: NAME},
        BETWEEN: {_CALL: NAME, _M3_END: CONTENT, _CALL_END: BETWEEN},
    },
    args={ARGS: Elements(_MARK)},
    tokens=(_MARK,),
    hints=(_MARK, "<invoke name=", "<tool_call>", "</tool_call>"),
    grammar=Wire(
        f"{_M3_BEGIN}\n", f'{_CALL}"{{name}}">', f"{_CALL_END}\n", _M3_END,
        value=(f"{_MARK}<{{key}}>", f"{_MARK}</{{key}}>"),
    ),
    examples=(
        Example(
            f'<mm:think>Think</mm:think>Ok{_M3_BEGIN}\n{_CALL}"get_weather">{_e("city", "Paris")}{_e("days", "3")}'
            f'{_CALL_END}\n{_CALL}"now">{_CALL_END}\n{_M3_END}',
            reasoning="Think",
            content="Ok",
            calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
        ),
        Example(
            f'{_M3_BEGIN}{_CALL}"now">{_e("a", _e("item", "x") + _e("item", _e("b", "y") + "z"))}{_e("c", "")}'
            f'{_e("k", "u<v>")}{_e("d", _e("e", _e("f", "g")))}{_MARK}<h>i{_CALL_END}{_M3_END}Bye',
            content="Bye",
            calls=(
                ("now", {"a": ["x", {"b": "y", "$text": "z"}], "c": "", "k": "u<v>", "d": {"e": {"f": "g"}}, "h": "i"}),
            ),
        ),
    ),
)  # fmt: skip
