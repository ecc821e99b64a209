"""GLM-4.5 to 5, Poolside's Laguna: the name, then a pair of tags for a parameter's key and another for its value."""

from dataclasses import replace

from octavo.front.parsers.spec import (
    ARGS,
    BETWEEN,
    CONTENT,
    KEY,
    NAME,
    Example,
    ParserSpec,
    Tags,
    Think,
    Wire,
    tag_rows,
)

_ENDS = {"</tool_call>": CONTENT, "<tool_call>": NAME}

GLM = ParserSpec(
    name="glm",
    think=Think("<think>", "</think>", reenter=True),
    table={
        CONTENT: {"<tool_call>": NAME},
        NAME: {"<arg_key>": KEY, **_ENDS},
        **tag_rows(_ENDS, key="<arg_key>", key_end="</arg_key>", value="<arg_value>", value_end="</arg_value>"),
        BETWEEN: _ENDS,
    },
    args={ARGS: Tags()},
    tokens=(
        "<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    ),
    hints=("<tool_call>", "<arg_key>", "<arg_value>"),
    grammar=Wire(
        "", "<tool_call>{name}", "</tool_call>", value=("<arg_key>{key}</arg_key><arg_value>", "</arg_value>")
    ),
    examples=(
        Example(
            "Think.</think>Ok.<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value><arg_key>days"
            "</arg_key><arg_value>3</arg_value></tool_call><tool_call>now</tool_call>",
            reasoning="Think.",
            content="Ok.",
            calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
        ),
        Example(
            "<think></think>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value> Paris\n</arg_value>\n"
            "<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>\nBye.",
            content="Bye.",
            calls=(("get_weather", {"city": "Rome"}),),
        ),
    ),
)  # fmt: skip

#: Its prompts say whether reasoning is open; where one does not, it is not.
POOLSIDE_V1 = replace(
    GLM,
    name="poolside_v1",
    think=Think("<think>", "</think>", kwargs=("enable_thinking",), default=False),
    hints=(*GLM.hints, "<assistant>"),
    examples=tuple(
        example._replace(wire=example.wire if example.wire.startswith("<think>") else f"<think>{example.wire}")
        for example in GLM.examples
    ),
)
