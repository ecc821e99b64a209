"""A JSON list of calls that is the whole answer: what a grammar makes a model write whose own notation has none."""

from octavo.front.parsers.spec import ARGS, CONTENT, Example, JsonCall, ParserSpec, To, Wire

GUIDED = ParserSpec(
    name="json",
    table={CONTENT: {"[": To(ARGS, keep=True, first=True), "{": To(ARGS, keep=True, first=True)}, ARGS: {}},
    args={ARGS: JsonCall(bare=True)},
    grammar=Wire("[", '{"name": "{name}", "parameters": ', "}", "]", ", "),
    examples=(
        Example(
            '[{"name": "get_weather", "parameters": {"city": "Paris", "days": 3}}, {"name": "now", "parameters": {}}]',
            calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
        ),
        Example('{"name": "now"}', calls=(("now", {}),)),
        Example('{"answer": [1, 2]}', content='{"answer": [1, 2]}'),
        Example('[{"name": "Ann", "age": 3}]', content='[{"name": "Ann", "age": 3}]'),
    ),
)
