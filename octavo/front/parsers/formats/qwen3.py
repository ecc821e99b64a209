"""A tag a function and a tag a parameter: Qwen3-Coder, MiMo, Nemotron 3, Seed-OSS, Step 3.5.

Qwen3's JSON in the same wrapper is read too.
"""

from dataclasses import replace

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


def _coder(name: str, prefix: str, think: Think, *examples: Example) -> ParserSpec:
    """``prefix``: of the wrapper's name and of reasoning's."""
    begin, end = f"<{prefix}tool_call>", f"</{prefix}tool_call>"
    ends = {"</function>": BETWEEN, end: CONTENT, begin: WRAP}
    return ParserSpec(
        name=name,
        think=think,
        table={
            CONTENT: {begin: WRAP, "<function=": To(NAME, line=True)},
            WRAP: {"<function=": NAME, "{": To(_JSON, keep=True), end: CONTENT},
            NAME: {">": ARGS, "</function>": BETWEEN, end: CONTENT},
            **tag_rows(ends, key="<parameter=", key_end=">", value_end="</parameter>"),
            _JSON: {end: CONTENT, begin: WRAP},
            BETWEEN: {end: CONTENT, begin: WRAP, "<function=": NAME, "{": To(_JSON, keep=True)},
        },
        args={ARGS: Tags(Trim.LINE), _JSON: JsonCall()},
        tokens=(think.start, think.end, begin, end),
        hints=(begin, "<function=", "<parameter="),
        grammar=Wire(
            f"{begin}\n",
            "<function={name}>\n",
            "</function>\n",
            end,
            f"{end}\n{begin}\n",
            value=("<parameter={key}>\n", "\n</parameter>\n"),
        ),
        examples=(
            Example(
                f"Plan.\n{think.end}\n\nOk.\n\n{begin}\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
                f"<parameter=days>\n3\n</parameter>\n</function>\n{end}\n{begin}\n<function=now>\n</function>\n{end}",
                reasoning="Plan." if think.trim else "Plan.\n",
                content="Ok.",
                calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
            ),
            *examples,
        ),
    )


QWEN3_CODER = _coder(
    "qwen3_coder",
    "",
    Think("<think>", "</think>"),
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
)

STEP3P5 = _coder("step3p5", "", Think("<think>", "</think>", trim=True))

SEED_OSS = _coder(
    "seed_oss",
    "seed:",
    Think("<seed:think>", "</seed:think>"),
    Example(
        "<seed:think>Hm</seed:think>\n<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n"
        "<parameter=days>3</parameter>\n</function>\n</seed:tool_call>",
        reasoning="Hm",
        calls=(("get_weather", {"city": "Paris", "days": 3}),),
    ),
)

NEMOTRON_V3 = _coder("nemotron_v3", "", Think("<think>", "</think>", trim=True, force="force_nonempty_content"))
NEMOTRON_V3 = replace(NEMOTRON_V3, hints=(*NEMOTRON_V3.hints, "truncate_history_thinking"))
