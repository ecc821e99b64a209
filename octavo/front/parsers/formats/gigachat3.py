"""GigaChat 3: JSON behind a marker, or behind the header of a message of its own in the first release."""

from collections.abc import Collection
from dataclasses import replace

from octavo.front.parsers.spec import ARGS, BETWEEN, CONTENT, WRAP, Example, JsonCall, ParserSpec, To, Wire

_CALL, _SEP = "<|function_call|>", "<|role_sep|>"
_HEADER = f"function call{_SEP}"
_JSON = '{"name": "{name}", "arguments": '
_NEXT = {_CALL: WRAP, _HEADER: WRAP}


def _refit(added: Collection[str]) -> ParserSpec:
    """The first release's vocabulary has no marker of calls."""
    first = _SEP in added and _CALL not in added
    return replace(GIGACHAT3, grammar=Wire("", f"{_HEADER}\n{_JSON}", "}", between="\n")) if first else GIGACHAT3


GIGACHAT3 = ParserSpec(
    name="gigachat3",
    table={
        CONTENT: _NEXT,
        WRAP: {"{": To(ARGS, keep=True), **_NEXT},
        ARGS: _NEXT,
        BETWEEN: _NEXT,
    },
    args={ARGS: JsonCall()},
    tokens=(_CALL, _SEP, "<|message_sep|>"),
    hints=(_SEP, "function call", "function descriptions"),
    grammar=Wire("", f"{_CALL}{_JSON}", "}"),
    refit=_refit,
    examples=(
        Example(
            f'Ok.{_CALL}{{"name": "get_weather", "arguments": {{"city": "Paris", "days": 3}}}}'
            f'{_CALL}{{"name": "now", "arguments": {{}}}}',
            content="Ok.",
            calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
        ),
        Example(
            f'Ok.\n\n{_HEADER}\n{{"name": "now", "arguments": {{}}}}\n\n',
            content="Ok.",
            calls=(("now", {}),),
        ),
    ),
)
