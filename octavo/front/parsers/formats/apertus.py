"""Apertus: a list of objects whose one key is the name."""

from octavo.front.parsers.spec import ARGS, BETWEEN, CONTENT, WRAP, Example, JsonCall, ParserSpec, Think, To, Wire

_OPEN, _CLOSE = "<|tools_prefix|>", "<|tools_suffix|>"
_INNER, _INNER_END = "<|inner_prefix|>", "<|inner_suffix|>"

APERTUS = ParserSpec(
    name="apertus",
    think=Think(_INNER, _INNER_END, kwargs=(), default=False, reenter=True),
    table={
        CONTENT: {_OPEN: WRAP},
        WRAP: {"[": To(ARGS, keep=True), "{": To(ARGS, keep=True), _CLOSE: CONTENT},
        ARGS: {_CLOSE: CONTENT},
        BETWEEN: {_CLOSE: CONTENT},
    },
    args={ARGS: JsonCall(name=())},
    tokens=(_OPEN, _CLOSE, _INNER, _INNER_END),
    hints=(_OPEN, _CLOSE),
    grammar=Wire(f"{_OPEN}[", '{"{name}": ', "}", f"]{_CLOSE}", ", "),
    examples=(
        Example(
            f'{_INNER}Hm.{_INNER_END}Ok.{_OPEN}[{{"get_weather": {{"city": "Paris", "days": 3}}}}, '
            f'{{"now": {{}}}}]{_CLOSE}',
            reasoning="Hm.",
            content="Ok.",
            calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
        ),
        Example(f'{_OPEN}[{{"now": {{}}}}]{_CLOSE}[0]Done.', content="[0]Done.", calls=(("now", {}),)),
    ),
)
