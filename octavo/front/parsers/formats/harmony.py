"""Harmony, of gpt-oss: messages with headers that say the channel and the recipient."""

import re

from octavo.front.parsers.spec import (
    ARGS,
    BETWEEN,
    CONTENT,
    REASONING,
    Example,
    Head,
    Json,
    ParserSpec,
    Role,
    Think,
    Wire,
)

_START, _CHANNEL, _MESSAGE, _CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
_END, _CALL, _RETURN = "<|end|>", "<|call|>", "<|return|>"
_HEADER = "header"
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_NEXT = {_START: _HEADER, _CHANNEL: _HEADER}


def _header(text: str) -> Head:
    """Calls have a recipient; tools that are not the client's are the model's own business, as is its analysis."""
    recipient = _RECIPIENT.search(text)
    if recipient is not None:
        name = recipient[1]
        return Head(name.removeprefix("functions.")) if name.startswith("functions.") else Head("", state=REASONING)
    channel = text.rsplit(_CHANNEL, 1)[-1].split(_CONSTRAIN)[0].strip()
    return Head("", state=REASONING if channel == "analysis" else CONTENT)


HARMONY = ParserSpec(
    name="openai",
    # What the end of reasoning looks like to a grammar; the parser goes by the headers.
    think=Think(f"{_CHANNEL}analysis{_MESSAGE}", f"{_CHANNEL}final{_MESSAGE}", kwargs=()),
    fused=True,
    start=_HEADER,
    table={
        _HEADER: {_MESSAGE: ARGS, _START: _HEADER},
        REASONING: {_END: BETWEEN, _CALL: BETWEEN, _RETURN: BETWEEN, **_NEXT},
        CONTENT: {_END: BETWEEN, _RETURN: BETWEEN, **_NEXT},
        ARGS: {_CALL: BETWEEN, _END: BETWEEN, **_NEXT},
        BETWEEN: {_CALL: BETWEEN, _END: BETWEEN, _RETURN: BETWEEN, **_NEXT},
    },
    roles={_HEADER: Role.NAME},
    args={ARGS: Json()},
    header=_header,
    data=(_CHANNEL, _CONSTRAIN),
    tokens=(_START, _CHANNEL, _MESSAGE, _CONSTRAIN, _END, _CALL, _RETURN),
    hints=(_CHANNEL, _MESSAGE, "analysis"),
    # The last call's end marker ends the answer, so that it is no part of a grammar.
    grammar=Wire(
        "",
        f"{_CHANNEL}commentary to=functions.{{name}} {_CONSTRAIN}json{_MESSAGE}",
        "",
        between=f"{_CALL}{_START}assistant",
        says=tuple(f"{_CHANNEL}{channel}{_MESSAGE}{{text}}" for channel in ("analysis", "commentary", "final")),
        then=f"{_END}{_START}assistant",
    ),
    examples=(
        Example(
            f"{_CHANNEL}analysis{_MESSAGE}Need it.{_END}{_START}assistant{_CHANNEL}commentary{_MESSAGE}Ok.{_END}"
            f"{_START}assistant{_CHANNEL}commentary to=functions.get_weather {_CONSTRAIN}json{_MESSAGE}"
            f'{{"city": "Paris", "days": 3}}{_CALL}'
            f"{_START}assistant to=functions.now{_CHANNEL}commentary{_MESSAGE}{{}}",
            reasoning="Need it.",
            content="Ok.",
            calls=(("get_weather", {"city": "Paris", "days": 3}), ("now", {})),
        ),
        Example(
            f"{_CHANNEL}analysis{_MESSAGE}One{_END}{_START}assistant{_CHANNEL}analysis{_MESSAGE}Two{_END}"
            f"{_START}assistant to=browser.open{_CHANNEL}commentary{_MESSAGE}x{_END}"
            f"{_START}assistant{_CHANNEL}commentary{_MESSAGE}A{_END}{_START}assistant{_CHANNEL}final{_MESSAGE}B",
            reasoning="One\nTwo\nx",
            content="A\nB",
        ),
    ),
)
