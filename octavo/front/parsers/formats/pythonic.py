"""Calls as Python writes them: in a list that is the whole answer, or between markers."""

from octavo.front.parsers.spec import ARGS, BETWEEN, CONTENT, Example, ParserSpec, Python, Think, To, Wire

_START, _END = "<|python_start|>", "<|python_end|>"
_FUNCTIONS, _FUNCTIONS_END = "<function_calls>", "</function_calls>"
_CALL, _CALL_END = "<|tool_call_start|>", "<|tool_call_end|>"
_LIST = Wire("[", "{name}(", ")", "]", ", ")

#: Llama 3.2, ToolACE and others.
PYTHONIC = ParserSpec(
    name="pythonic",
    table={CONTENT: {"[": To(ARGS, keep=True, first=True)}, ARGS: {}},
    args={ARGS: Python(known=True)},
    hints=("[func_name1(params_name1=",),
    grammar=_LIST,
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

LLAMA4_PYTHONIC = ParserSpec(
    name="llama4_pythonic",
    table={
        CONTENT: {"[": To(ARGS, keep=True, first=True), _START: ARGS},
        ARGS: {_END: CONTENT},
        BETWEEN: {_END: CONTENT},
    },
    # Python that is no call stands between the same markers.
    args={ARGS: Python(known=True)},
    tokens=(_START, _END),
    hints=("<|header_start|>", "[func_name1(params_name1="),
    grammar=_LIST,
    examples=(
        Example(
            '[get_weather(city="Paris", days=3), now()]',
            calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
        ),
        Example(
            f"Ok.{_START}[get_weather(days=-3), now()]{_END}Bye.",
            content="Ok.Bye.",
            calls=(("get_weather", {"days": -3}), ("now", {})),
        ),
        Example(f"{_START}print(1){_END}", content=f"{_START}print(1){_END}"),
    ),
)

OLMO3 = ParserSpec(
    name="olmo3",
    think=Think("<think>", "</think>"),
    table={CONTENT: {_FUNCTIONS: ARGS}, ARGS: {_FUNCTIONS_END: CONTENT}, BETWEEN: {_FUNCTIONS_END: CONTENT}},
    args={ARGS: Python()},
    tokens=(_FUNCTIONS, _FUNCTIONS_END),
    hints=(_FUNCTIONS, _FUNCTIONS_END),
    grammar=Wire(f"{_FUNCTIONS}\n", "{name}(", ")", f"\n{_FUNCTIONS_END}", "\n"),
    examples=(
        Example(
            f'Plan.\n</think>\n\nOk.\n{_FUNCTIONS}\nget_weather(city="Paris", days=3)\nnow()\n{_FUNCTIONS_END}',
            reasoning="Plan.\n",
            content="Ok.",
            calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
        ),
        Example(
            f"<think>A</think>{_FUNCTIONS}get_weather(city='a)\\n', days=null){_FUNCTIONS_END}Bye.",
            reasoning="A",
            content="Bye.",
            calls=(("get_weather", {"city": "a)\n", "days": None}),),
        ),
    ),
)

LFM2 = ParserSpec(
    name="lfm2",
    think=Think("<think>", "</think>", default=False),
    table={
        CONTENT: {_CALL: ARGS},
        ARGS: {_CALL_END: CONTENT, _CALL: ARGS},
        BETWEEN: {_CALL_END: CONTENT},
    },
    args={ARGS: Python()},
    tokens=(_CALL, _CALL_END, "<think>", "</think>"),
    hints=(_CALL, _CALL_END),
    grammar=Wire(f"{_CALL}[", "{name}(", ")", f"]{_CALL_END}", ", "),
    examples=(
        Example(
            f'<think>Hm.</think>{_CALL}[get_weather(city="Paris", days=3), now()]{_CALL_END}',
            reasoning="Hm.",
            calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
        ),
        Example(
            f"Ok.{_CALL}[now()]{_CALL_END}{_CALL}[now()]{_CALL_END}Checking.",
            content="Ok.Checking.",
            calls=(("now", {}), ("now", {})),
        ),
    ),
)
