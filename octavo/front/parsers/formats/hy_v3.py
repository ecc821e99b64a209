"""Hunyuan 3: GLM's pairs of tags in a wrapper. All markers end in a suffix that the vocabulary shows."""

import re
from collections.abc import Collection

from octavo.front.parsers.spec import (
    ARGS,
    BETWEEN,
    CONTENT,
    KEY,
    NAME,
    WRAP,
    Example,
    ParserSpec,
    Tags,
    Think,
    Wire,
    tag_rows,
)

_SUFFIXED = re.compile(r"<tool_calls(:[\w.\-]{1,32})>")


def hy_v3(suffix: str) -> ParserSpec:
    def tag(name: str) -> tuple[str, str]:
        return f"<{name}{suffix}>", f"</{name}{suffix}>"

    think, begin, call, key, value = map(tag, ("think", "tool_calls", "tool_call", "arg_key", "arg_value"))
    sep = f"<tool_sep{suffix}>"
    ends = {call[1]: BETWEEN, begin[1]: CONTENT, call[0]: NAME}
    return ParserSpec(
        name="hy_v3",
        think=Think(
            *think, kwargs=(), on={"reasoning_effort": ("low", "medium", "high")}, default=False, shown="</think"
        ),
        table={
            CONTENT: {begin[0]: WRAP, call[0]: NAME},
            WRAP: {call[0]: NAME, begin[1]: CONTENT},
            NAME: {sep: ARGS, key[0]: KEY, **ends},
            **tag_rows(ends, key=key[0], key_end=key[1], value=value[0], value_end=value[1]),
            BETWEEN: ends,
        },
        args={ARGS: Tags()},
        tokens=(*think, *begin, *call, sep, *key, *value),
        hints=("<tool_calls", "<tool_sep", "<arg_key"),
        grammar=Wire(
            f"{begin[0]}\n",
            f"{call[0]}{{name}}{sep}\n",
            f"{call[1]}\n",
            begin[1],
            value=(f"{key[0]}{{key}}{key[1]}\n{value[0]}", f"{value[1]}\n"),
        ),
        refit=_refit,
        examples=(
            Example(
                f"{think[0]}Plan.{think[1]}Ok.{begin[0]}\n{call[0]}get_weather{sep}\n{key[0]}city{key[1]}\n"
                f"{value[0]}Paris{value[1]}\n{key[0]}days{key[1]}\n{value[0]}3{value[1]}\n{call[1]}\n"
                f"{call[0]}now{sep}\n{call[1]}\n{begin[1]}",
                reasoning="Plan.",
                content="Ok.",
                calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
            ),
            Example(
                f"{call[0]}now{call[1]}\n{call[0]}get_weather\n{key[0]}days{key[1]}{value[0]}4{value[1]}{call[1]}",
                calls=(("now", {}), ("get_weather", {"days": 4})),
            ),
        ),
    )


def _refit(added: Collection[str]) -> ParserSpec:
    found = next((match for match in map(_SUFFIXED.fullmatch, added) if match is not None), None)
    return HY_V3 if found is None else hy_v3(found[1])


HY_V3 = hy_v3("")
