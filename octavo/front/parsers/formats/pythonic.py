"""A list of Python calls that is the whole answer: Llama 3.2, ToolACE and others."""

from octavo.front.parsers.spec import ARGS, CONTENT, Example, ParserSpec, Python, To

PYTHONIC = ParserSpec(
    name="pythonic",
    table={CONTENT: {"[": To(ARGS, keep=True, first=True)}, ARGS: {}},
    args={ARGS: Python(known=True)},
    examples=(
        Example(
            '[get_weather(city="Paris", days=3), now()]',
            calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
        ),
        Example(
            "[get_weather(city='It\\'s \"x\"', days='4', more={'a': [True, None, (1, 2.5)]},)] ok",
            content="ok",
            calls=(("get_weather", {"city": 'It\'s "x"', "days": 4, "more": {"a": [True, None, [1, 2.5]]}}),),
        ),
        Example("[1] says so, [now()] too", content="[1] says so, [now()] too"),
    ),
)
