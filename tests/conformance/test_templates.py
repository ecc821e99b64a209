"""Real chat templates write what they write under Transformers; where one refuses, the error is the caller's.

``OCTAVO_TEMPLATES`` names a folder of ``*.jinja`` files, or the sdist of llama-cpp-python that ships some 70 of them
(``scripts/templates`` brings it); without it there is nothing to test.
"""

import json
import os
import tarfile
from pathlib import Path

import pytest

from octavo.errors import BadRequest
from octavo.front.chat.template import ChatTemplate

SPECIALS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "Where."}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    }
]
CALL = {
    "id": "abcdef123",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "Paris", "days": 3}},
}
TALK = [
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": "Hi!"},
    {"role": "user", "content": "Well?"},
]
USED = [
    {"role": "user", "content": "Is it warm in Paris?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "abcdef123", "name": "get_weather", "content": "20 degrees"},
]
CASES = {
    "talk": (TALK, {}),
    "system": ([{"role": "system", "content": "Be brief."}, *TALK], {}),
    "tools": (TALK, {"tools": TOOLS}),
    "used": (USED, {"tools": TOOLS}),
    "answered": ([*USED, {"role": "assistant", "content": "Yes."}, TALK[0]], {"tools": TOOLS}),
}


def _templates() -> dict[str, str]:
    place = os.environ.get("OCTAVO_TEMPLATES")
    if not place:
        return {}
    path = Path(place)
    if path.is_dir():
        return {file.stem: file.read_text() for file in sorted(path.glob("*.jinja"))}
    found = {}
    with tarfile.open(path) as archive:
        for member in archive:
            if member.name.endswith(".jinja") and "/models/templates/" in member.name:
                file = archive.extractfile(member)
                assert file is not None
                found[Path(member.name).stem] = file.read().decode()
    return dict(sorted(found.items()))


TEMPLATES = _templates()
if not TEMPLATES:
    pytest.skip("OCTAVO_TEMPLATES names no templates", allow_module_level=True)


def reference(source, messages, tools=None):
    """What Transformers writes; None where it raises."""
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        found, _ = render_jinja_template(
            [messages], tools=tools, chat_template=source, add_generation_prompt=True, **SPECIALS
        )
    except Exception:
        return None
    return found[0]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("case", CASES)
def test_as_transformers_writes_it(name, case):
    messages, options = CASES[case]
    source = TEMPLATES[name]
    sent = json.loads(json.dumps(messages))
    for message in sent:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    wanted = reference(source, messages, options.get("tools"))
    template = ChatTemplate({"default": source}, SPECIALS)
    if wanted is not None:
        text = template.render(sent, **options)
        assert text == wanted or "strftime_now" in source
        return
    try:  # what Transformers cannot write, we may
        template.render(sent, **options)
    except BadRequest:
        pass


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_last_message_is_continued(name):
    messages = [TALK[0], {"role": "assistant", "content": "The answer is "}]
    template = ChatTemplate({"default": TEMPLATES[name]}, SPECIALS)
    try:
        text = template.render(messages, add_generation_prompt=False, continue_final_message=True)
    except BadRequest:
        return
    assert text.endswith("The answer is ")
