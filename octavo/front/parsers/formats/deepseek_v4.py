"""DeepSeek V4: tags with a word of their own; a parameter says whether it is a string."""

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
_OPEN, _CLOSE = f"<{_WORD}tool_calls>", f"</{_WORD}tool_calls>"
_CALL, _CALL_END = f"<{_WORD}invoke", f"</{_WORD}invoke>"
_KEY, _VALUE_END = f"<{_WORD}parameter", f"</{_WORD}parameter>"
_ENDS = {_CALL_END: BETWEEN, _CLOSE: CONTENT, _CALL: NAME}

DEEPSEEK_V4 = ParserSpec(
    name="deepseek_v4",
    think=Think("<think>", "</think>", default=False, reenter=True),
    table={
        CONTENT: {_OPEN: WRAP},
        WRAP: {_CALL: NAME, _CLOSE: CONTENT},
        NAME: {">": ARGS, _CALL_END: BETWEEN, _CLOSE: CONTENT},
        **tag_rows(_ENDS, key=_KEY, key_end=">", value_end=_VALUE_END),
        BETWEEN: {_CALL: NAME, _CLOSE: CONTENT},
    },
    args={ARGS: Tags(unwrap=("arguments", "input"))},
    header=attribute_name,
    tokens=("<think>", "</think>"),
    hints=("DSML", "tool_calls", "invoke"),
    grammar=Wire(
        f"{_OPEN}\n", f'{_CALL} name="{{name}}">\n', f"{_CALL_END}\n", _CLOSE,
        value=(f'{_KEY} name="{{key}}" string="{{string}}">', f"{_VALUE_END}\n"),
    ),
    examples=(
        Example(
            f'<think>Let me.</think>Hi\n\n{_OPEN}\n{_CALL} name="get_weather">\n'
            f'{_KEY} name="city" string="true">Paris{_VALUE_END}\n{_KEY} name="days" string="false">3{_VALUE_END}\n'
            f'{_CALL_END}\n{_CALL} name="now">\n{_CALL_END}\n{_CLOSE}',
            reasoning="Let me.",
            content="Hi",
            calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
        ),
        Example(
            f'{_OPEN}\n{_CALL} name="get_weather">\n{_KEY} name="arguments" string="false">{{"city": "Paris"}}'
            f'{_VALUE_END}\n{_CALL_END}\n{_CALL} name="now">\n{_KEY} name="a">1{_VALUE_END}\n'
            f'{_KEY} name="b" string="false">[1]{_VALUE_END}\n{_CLOSE}bye',
            content="bye",
            calls=(("get_weather", {"city": "Paris"}), ("now", {"a": "1", "b": [1]})),
        ),
    ),
)  # fmt: skip
