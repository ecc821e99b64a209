"""Qwen3-Coder and MiMo: a tag a function and a tag a parameter; Qwen3's JSON in the same wrapper is read too."""

from octavo.front.parsers.spec import (
    ARGS,
    BETWEEN,
    CONTENT,
    NAME,
    WRAP,
    Example,
    JsonCall,
    ParserSpec,
    Tags,
    Think,
    To,
    Trim,
    Wire,
    tag_rows,
)

_JSON = "json"
_ENDS = {"</function>": BETWEEN, "</tool_call>": CONTENT, "<tool_call>": WRAP}

QWEN3_CODER = ParserSpec(
    name="qwen3_coder",
    think=Think("<think>", "</think>"),
    table={
        CONTENT: {"<tool_call>": WRAP, "<function=": To(NAME, line=True)},
        WRAP: {"<function=": NAME, "{": To(_JSON, keep=True), "</tool_call>": CONTENT},
        NAME: {">": ARGS, "</function>": BETWEEN, "</tool_call>": CONTENT},
        **tag_rows(_ENDS, key="<parameter=", key_end=">", value_end="</parameter>"),
        _JSON: {"</tool_call>": CONTENT, "<tool_call>": WRAP},
        BETWEEN: {"</tool_call>": CONTENT, "<tool_call>": WRAP, "<function=": NAME, "{": To(_JSON, keep=True)},
    },
    args={ARGS: Tags(Trim.LINE), _JSON: JsonCall()},
    tokens=("<think>", "</think>", "<tool_call>", "</tool_call>"),
    hints=("<tool_call>", "<function=", "<parameter="),
    grammar=Wire(
        "<tool_call>\n",
        "<function={name}>\n",
        "</function>\n",
        "</tool_call>",
        "</tool_call>\n<tool_call>\n",
        value=("<parameter={key}>\n", "\n</parameter>\n"),
    ),
    examples=(
        Example(
            "Plan.\n</think>\n\nOk.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
            "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n"
            "<tool_call>\n<function=now>\n</function>\n</tool_call>",
            reasoning="Plan.\n",
            content="Ok.",
            calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
        ),
        Example(
            "</think><function=get_weather>\n<parameter=city>\n  a </parameter> b\n</parameter>\n</function>\nBye.",
            content="Bye.",
            calls=(("get_weather", {"city": "  a </parameter> b"}),),
        ),
        Example(
            'Ok</think>Write <function=now> here.<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
            reasoning="Ok",
            content="Write <function=now> here.",
            calls=(("now", {}),),
        ),
    ),
)
