"""MiniCPM 5: a tag a function and a tag a parameter; values with markup stand in a CDATA section."""

from octavo.front.parsers.spec import (
    ARGS,
    BETWEEN,
    CONTENT,
    NAME,
    Example,
    ParserSpec,
    Tags,
    Think,
    Wire,
    attribute_name,
    tag_rows,
)

_CALL, _CALL_END = "<function name=", "</function>"
_ENDS = {_CALL_END: CONTENT, _CALL: NAME}

MINICPM5 = ParserSpec(
    name="minicpm5",
    think=Think("<think>", "</think>", default=False),
    table={
        CONTENT: {_CALL: NAME},
        NAME: {">": ARGS, _CALL_END: CONTENT},
        **tag_rows(_ENDS, key="<param name=", key_end=">", value_end="</param>"),
        BETWEEN: _ENDS,
    },
    args={ARGS: Tags(quotes=("<![CDATA[", "]]>"))},
    header=attribute_name,
    tokens=("<think>", "</think>"),
    hints=(_CALL, "<param name="),
    grammar=Wire("", f'{_CALL}"{{name}}">', _CALL_END, between="\n", value=('<param name="{key}">', "</param>")),
    examples=(
        Example(
            f'<think>\nPlan.\n</think>\n\nOk.\n{_CALL}"get_weather"><param name="city">Paris</param>'
            f'<param name="days">3</param>{_CALL_END}\n{_CALL}"now">{_CALL_END}',
            reasoning="\nPlan.\n",
            content="Ok.",
            calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
        ),
        Example(
            f'{_CALL}"get_weather"><param name="city"><![CDATA[a</param> <b>]]c\n]]></param>'
            f'<param name="days"><![CDATA[3]]></param><param name="more"><![C</param>{_CALL_END}',
            calls=(("get_weather", {"city": "a</param> <b>]]c\n", "days": 3, "more": "<![C"}),),
        ),
    ),
)
