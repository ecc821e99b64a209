"""xLAM: a JSON list of calls, bare or in whatever its base model puts around such."""

from octavo.front.parsers.spec import ARGS, BETWEEN, CONTENT, WRAP, Example, JsonCall, ParserSpec, Think, To, Wire

_FENCE, _FENCE_END, _TAG, _TAG_END, _MISTRAL = "```json", "```", "<tool_call>", "</tool_call>", "[TOOL_CALLS]"
_ENDS = {_FENCE_END: CONTENT, _TAG_END: CONTENT}

XLAM = ParserSpec(
    name="xlam",
    think=Think("<think>", "</think>", default=False, implicit=False),
    table={
        CONTENT: {
            "[": To(ARGS, keep=True, line=True), "{": To(ARGS, keep=True, line=True),
            _FENCE: WRAP, _TAG: WRAP, _MISTRAL: WRAP,
        },
        WRAP: {"[": To(ARGS, keep=True), "{": To(ARGS, keep=True), **_ENDS},
        ARGS: _ENDS,
        BETWEEN: {**_ENDS, "[": To(ARGS, keep=True), "{": To(ARGS, keep=True)},
    },
    args={ARGS: JsonCall(bare=True)},
    hints=("Salesforce xLAM",),
    grammar=Wire("[", '{"name": "{name}", "arguments": ', "}", "]", ", "),
    examples=(
        Example(
            '[{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}, {"name": "now", "arguments": {}}]',
            calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
        ),
        Example(
            f'<think>Hm.</think>Ok:\n{_FENCE}\n[{{"name": "now", "arguments": {{}}}}]\n{_FENCE_END}\nBye.',
            reasoning="Hm.",
            content="Ok:\nBye.",
            calls=(("now", {}),),
        ),
        Example('Ok.</think>[{"name": "now", "arguments": {}}]', content="Ok.", calls=(("now", {}),)),
        Example(f'{_MISTRAL} [{{"name": "other", "arguments": {{}}}}]', calls=(("other", {}),)),
        Example(f'Hi{_TAG}[{{"name": "now"}}]{_TAG_END}', content="Hi", calls=(("now", {}),)),
        Example(f'{_FENCE}\n{{"a": [1]}}\n{_FENCE_END}', content=f'{_FENCE}\n{{"a": [1]}}\n{_FENCE_END}'),
    ),
)  # fmt: skip
