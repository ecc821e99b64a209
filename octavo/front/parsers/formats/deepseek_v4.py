"""DeepSeek V3.2 and V4: tags with a word of their own; a parameter says whether it is a string."""

from octavo.front.parsers.spec import (
    ARGS,
    BETWEEN,
    CONTENT,
    NAME,
    WRAP,
    Example,
    ParserSpec,
    Tags,
    Think,
    Wire,
    attribute_name,
    tag_rows,
)

_WORD = "｜DSML｜"
_CALL, _CALL_END = f"<{_WORD}invoke", f"</{_WORD}invoke>"
_KEY, _VALUE_END = f"<{_WORD}parameter", f"</{_WORD}parameter>"


def _dsml(name: str, wrapper: str, think: Think) -> ParserSpec:
    begin, end = f"<{_WORD}{wrapper}>", f"</{_WORD}{wrapper}>"
    ends = {_CALL_END: BETWEEN, end: CONTENT, _CALL: NAME}
    return ParserSpec(
        name=name,
        think=think,
        table={
            CONTENT: {begin: WRAP},
            WRAP: {_CALL: NAME, end: CONTENT},
            NAME: {">": ARGS, _CALL_END: BETWEEN, end: CONTENT},
            **tag_rows(ends, key=_KEY, key_end=">", value_end=_VALUE_END),
            BETWEEN: {_CALL: NAME, end: CONTENT},
        },
        args={ARGS: Tags(unwrap=("arguments", "input"))},
        header=attribute_name,
        tokens=("<think>", "</think>"),
        hints=("DSML", wrapper, "invoke"),
        grammar=Wire(
            f"{begin}\n",
            f'{_CALL} name="{{name}}">\n',
            f"{_CALL_END}\n",
            end,
            value=(f'{_KEY} name="{{key}}" string="{{string}}">', f"{_VALUE_END}\n"),
        ),
        examples=(
            Example(
                f'<think>Let me.</think>Hi\n\n{begin}\n{_CALL} name="get_weather">\n'
                f'{_KEY} name="city" string="true">Paris{_VALUE_END}\n{_KEY} name="days" string="false">3{_VALUE_END}\n'
                f'{_CALL_END}\n{_CALL} name="now">\n{_CALL_END}\n{end}',
                reasoning="Let me.",
                content="Hi",
                calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
            ),
            Example(
                f'{begin}\n{_CALL} name="get_weather">\n{_KEY} name="arguments" string="false">{{"city": "Paris"}}'
                f'{_VALUE_END}\n{_CALL_END}\n{_CALL} name="now">\n{_KEY} name="a">1{_VALUE_END}\n'
                f'{_KEY} name="b" string="false">[1]{_VALUE_END}\n{end}bye',
                content="bye",
                calls=(("get_weather", {"city": "Paris"}), ("now", {"a": "1", "b": [1]})),
            ),
        ),
    )


_THINK = Think("<think>", "</think>", default=False, reenter=True)

DEEPSEEK_V32 = _dsml("deepseek_v32", "function_calls", _THINK)
DEEPSEEK_V4 = _dsml("deepseek_v4", "tool_calls", _THINK._replace(off={"reasoning_effort": ("none",)}))
