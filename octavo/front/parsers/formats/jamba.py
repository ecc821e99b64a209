"""A JSON list between tags: Jamba, Apriel and MiniMax M1; Nemotron Nano 2 in tags of its own."""

from octavo.front.parsers.spec import ARGS, BETWEEN, CONTENT, WRAP, Example, JsonCall, ParserSpec, To, Wire


def _between(name: str, begin: str, end: str, *, margin: str = "", gap: str = " ") -> ParserSpec:
    """``margin``: in front of a call; ``gap``: behind its comma."""
    first = '{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}'
    second = '{"name": "now", "arguments": {}}'
    last = "\n" if margin else ""
    return ParserSpec(
        name=name,
        table={
            CONTENT: {begin: WRAP},
            WRAP: {"[": To(ARGS, keep=True), "{": To(ARGS, keep=True), end: CONTENT},
            ARGS: {end: CONTENT},
            BETWEEN: {end: CONTENT, "{": To(ARGS, keep=True)},
        },
        args={ARGS: JsonCall()},
        tokens=(begin, end),
        hints=(begin, end),
        grammar=Wire(f"{begin}[{margin}", '{"name": "{name}", "arguments": ', "}", f"{last}]{end}", f",{gap}"),
        examples=(
            Example(
                f"Ok.{begin}[{margin}{first},{gap}{second}{last}]{end}",
                content="Ok.",
                calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
            ),
            Example(f"{begin}\n{second}\n{second}\n{end}Bye.", content="Bye.", calls=(("now", {}), ("now", {}))),
            Example(f"{begin}[]{end}", content=f"{begin}[]{end}"),
        ),
    )


JAMBA = _between("jamba", "<tool_calls>", "</tool_calls>", margin="\n    ", gap="\n    ")
NEMOTRON_JSON = _between("nemotron_json", "<TOOLCALL>", "</TOOLCALL>")
