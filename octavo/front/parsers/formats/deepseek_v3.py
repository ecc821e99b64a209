"""DeepSeek V3, R1 and V3.1: a header, then JSON; V3 and R1 with the kind of call in front and in a code block."""

from octavo.front.parsers.spec import (
    ARGS,
    BETWEEN,
    CONTENT,
    NAME,
    WRAP,
    Example,
    Json,
    ParserSpec,
    Role,
    Think,
    To,
    Wire,
)

_BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _SEP, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_KIND, _FENCE = "kind", "```"
_TOKENS = ("<think>", "</think>", _BEGIN, _END, _CALL, _SEP, _CALL_END)

DEEPSEEK_V3 = ParserSpec(
    name="deepseek_v3",
    think=Think("<think>", "</think>"),
    table={
        CONTENT: {_BEGIN: WRAP, _CALL: _KIND},
        WRAP: {_CALL: _KIND, _END: CONTENT},
        _KIND: {_SEP: NAME, _CALL_END: BETWEEN, _END: CONTENT},
        NAME: {f"{_FENCE}json": ARGS, "{": To(ARGS, keep=True), _CALL_END: BETWEEN, _END: CONTENT},
        ARGS: {_CALL_END: BETWEEN, _END: CONTENT, _CALL: _KIND},
        BETWEEN: {_CALL: _KIND, _END: CONTENT, _CALL_END: BETWEEN, _FENCE: BETWEEN},
    },
    roles={_KIND: Role.LABEL},
    args={ARGS: Json()},
    tokens=_TOKENS,
    hints=(_BEGIN, _SEP, f"{_FENCE}json"),
    grammar=Wire(
        _BEGIN,
        f"{_CALL}function{_SEP}{{name}}\n{_FENCE}json\n",
        f"\n{_FENCE}{_CALL_END}",
        _END,
        "\n",
    ),
    examples=(
        Example(
            f"Plan.\n</think>\n\nOk.{_BEGIN}{_CALL}function{_SEP}get_weather\n{_FENCE}json\n"
            f'{{"city": "Paris", "days": 3}}\n{_FENCE}{_CALL_END}\n'
            f"{_CALL}function{_SEP}now\n{_FENCE}json\n{{}}\n{_FENCE}{_CALL_END}{_END}",
            reasoning="Plan.\n",
            content="Ok.",
            calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
        ),
        Example(
            f'</think>{_BEGIN}{_CALL}function{_SEP}get_weather\n{{"days": "3"}}{_CALL_END}{_END}Bye ```now```.',
            content="Bye ```now```.",
            calls=(("get_weather", {"days": 3}),),
        ),
    ),
)

DEEPSEEK_V31 = ParserSpec(
    name="deepseek_v31",
    think=Think("<think>", "</think>", default=False),
    table={
        CONTENT: {_BEGIN: WRAP, _CALL: NAME},
        WRAP: {_CALL: NAME, _END: CONTENT},
        NAME: {_SEP: ARGS, _CALL_END: BETWEEN, _END: CONTENT},
        ARGS: {_CALL_END: BETWEEN, _END: CONTENT, _CALL: NAME},
        BETWEEN: {_CALL: NAME, _END: CONTENT, _CALL_END: BETWEEN},
    },
    args={ARGS: Json()},
    tokens=_TOKENS,
    hints=(_BEGIN, _SEP),
    grammar=Wire(_BEGIN, f"{_CALL}{{name}}{_SEP}", _CALL_END, _END),
    examples=(
        Example(
            f"<think>Plan.</think>Ok.{_BEGIN}{_CALL}get_weather{_SEP}"
            f'{{"city": "Paris", "days": 3}}{_CALL_END}{_CALL}now{_SEP}{{}}{_CALL_END}{_END}',
            reasoning="Plan.",
            content="Ok.",
            calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
        ),
        Example(
            f"{_BEGIN}{_CALL}now{_SEP}{_CALL_END}{_CALL}now{_CALL_END}{_END} Bye.",
            content="Bye.",
            calls=(("now", {}), ("now", {})),
        ),
    ),
)
