"""A scripted model that reasons and calls tools, for the APIs that agents use."""

from octavo.testing.scripted import model

#: Writes what Hermes-like models read: tools, reasoning, calls and their results.
TEMPLATE = (
    "{% if tools %}{{ '<|turn|>tools\n' + tools | tojson + '<|turn_end|>' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|turn|>' + message['role'] + '\n' }}"
    "{% if message['reasoning_content'] %}{{ '<think>' + message['reasoning_content'] + '</think>' }}{% endif %}"
    "{{ message['content'] or '' }}"
    "{% for call in message['tool_calls'] or [] %}"
    "{{ '<tool_call>' + {'name': call.function.name, 'arguments': call.function.arguments} | tojson + '</tool_call>' }}"
    "{% endfor %}"
    "{{ '<|turn_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|turn|>assistant\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think></think>' }}{% endif %}{% endif %}"
)
THOUGHT = "<think>I look it up.</think>\n\n"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 3}}\n</tool_call>'
TWO_CALLS = CALL + '\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}


def folder(path, **more):
    """The model's directory; ``more`` is of ``scripted.model``."""
    specials = ("<think>", "</think>", "<tool_call>", "</tool_call>")
    return model(path, chat_template=TEMPLATE, specials=specials, **more)
