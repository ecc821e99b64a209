"""Mistral: from its tokenizer's version 11 on a marker a call, the name and the arguments; before, a JSON list.

Both are read; they differ in how a grammar writes calls.
"""

from collections.abc import Collection
from dataclasses import replace

from octavo.front.parsers.spec import ARGS, CONTENT, NAME, Example, Head, Json, JsonCall, ParserSpec, Think, To, Wire

_CALLS, _ARGUMENTS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_LIST = "list"


def _header(text: str) -> Head:
    """A name; in version 11 the id may stand behind it."""
    name, _, id_ = text.partition(_ID)
    return Head(name.strip(), id_.strip())


def _refit(added: Collection[str]) -> ParserSpec:
    """Earlier vocabularies have no marker of arguments."""
    if _ARGUMENTS in added or _CALLS not in added:
        return MISTRAL
    return replace(MISTRAL, grammar=Wire(f"{_CALLS}[", '{"name": "{name}", "arguments": ', "}", "]", ", "))


MISTRAL = ParserSpec(
    name="mistral",
    think=Think("[THINK]", "[/THINK]", kwargs=(), default=False, reenter=True),
    table={
        CONTENT: {_CALLS: NAME},
        NAME: {_ARGUMENTS: ARGS, "{": To(ARGS, keep=True), "[": To(_LIST, keep=True), _CALLS: NAME},
        ARGS: {_CALLS: NAME},
        _LIST: {_CALLS: NAME},
    },
    args={ARGS: Json(), _LIST: JsonCall()},
    header=_header,
    ids="mistral",
    data=(_ID,),
    tokens=(_CALLS, _ARGUMENTS, _ID, "[THINK]", "[/THINK]"),
    hints=(_CALLS,),
    grammar=Wire("", f"{_CALLS}{{name}}{_ARGUMENTS}", ""),
    refit=_refit,
    examples=(
        Example(
            f'[THINK]Hm.[/THINK]Ok.{_CALLS}get_weather{_ARGUMENTS}{{"city": "Paris", "days": 3}}'
            f"{_CALLS}now{_ARGUMENTS}{{}}",
            reasoning="Hm.",
            content="Ok.",
            calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
        ),
        Example(
            f'{_CALLS}get_weather{{"city": "x"}}{_CALLS}now{_ID}abcdef123{_ARGUMENTS}{{}}',
            calls=(("get_weather", {"city": "x"}), ("now", {})),
        ),
        Example(
            f'Ok{_CALLS} [{{"name": "get_weather", "arguments": {{"city": "x"}}}}, '
            f'{{"name": "now", "arguments": {{}}, "id": "abcdef123"}}][THINK]More.[/THINK]Bye.',
            reasoning="More.",
            content="OkBye.",
            calls=(("get_weather", {"city": "x"}), ("now", {})),
        ),
        Example(f"See {_CALLS}[1]", content=f"See {_CALLS}[1]"),
    ),
)
