"""Chat templates: as Hugging Face writes them, with an end to time and size, and errors for the caller to read."""

import pytest

from front.support import small
from octavo.errors import BadRequest, ConfigError, Unsupported
from octavo.front.chat import budget
from octavo.front.chat.template import ChatTemplate

SPECIALS = {"bos_token": "<s>", "eos_token": "</s>"}
PLAIN = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[A]{% endif %}"
)
PARTS = "{% for m in messages %}{% for part in m.content %}({{ part.text }}){% endfor %}{% endfor %}"
USER = [{"role": "user", "content": "hi"}]


def write(source, messages=USER, **options):
    return ChatTemplate({"default": source}, SPECIALS).render(messages, **options)


def test_a_conversation():
    messages = [*USER, {"role": "assistant", "content": "yes"}]
    assert write(PLAIN, messages) == "<s>[user]hi</s>[assistant]yes</s>[A]"
    assert write(PLAIN, messages, add_generation_prompt=False) == "<s>[user]hi</s>[assistant]yes</s>"


def test_the_last_message_can_be_continued():
    messages = [*USER, {"role": "assistant", "content": "I am "}]
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert write(PLAIN, messages, **options) == "<s>[user]hi</s>[assistant]I am "
    trimmed = PLAIN.replace("m.content", "m.content | trim")
    assert write(trimmed, messages, **options) == "<s>[user]hi</s>[assistant]I am "
    with pytest.raises(BadRequest, match="ask for one of them"):
        write(PLAIN, messages, continue_final_message=True)
    with pytest.raises(BadRequest, match="last message with text"):
        write(PLAIN, [*USER, {"role": "assistant", "content": None}], **options)
    with pytest.raises(BadRequest, match="cannot be continued"):
        write("{{ messages[0].content }}", messages, **options)


LIST = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}, "c"]}]


def test_content_parts_are_joined_or_kept_as_the_template_takes_them():
    assert write(PLAIN, LIST) == "<s>[user]a\nb\nc</s>[A]"
    assert write(PARTS, LIST) == "(a)(b)(c)"
    assert write(PARTS, USER) == "(hi)"


MESSAGES = [
    ([], "messages must not be empty", "messages"),
    ("hi", "messages must be a list", "messages"),
    (["hi"], "messages.0 must be an object", "messages.0"),
    ([{"content": "a"}], "messages.0.role must be a non-empty string", "messages.0.role"),
    ([{"role": "user"}], "messages.0.content must be text", "messages.0.content"),
    ([{"role": "user", "content": 5}], "got int", "messages.0.content"),
    ([{"role": "user", "content": "\ud83d"}], "lone surrogate", "messages.0.content"),
    (
        [{"role": "user", "content": [{"type": "sound"}]}],
        "messages.0.content.0.type is 'sound'",
        "messages.0.content.0.type",
    ),
    (
        [{"role": "user", "content": [{"type": "text"}]}],
        "messages.0.content.0.text must be text",
        "messages.0.content.0.text",
    ),
    (
        [*USER, {"role": "assistant", "tool_calls": [{}]}],
        "must be an object with a function",
        "messages.1.tool_calls.0",
    ),
    (
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
        "arguments is not JSON",
        "messages.0.tool_calls.0.function.arguments",
    ),
    (
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}],
        "must be a JSON object, got list",
        "messages.0.tool_calls.0.function.arguments",
    ),
    (
        [{"role": "assistant", "tool_calls": [{"function": {"name": "", "arguments": {}}}]}],
        "name must be a non-empty string",
        "messages.0.tool_calls.0.function.name",
    ),
    (
        [{"role": "assistant", "tool_calls": [{"id": 5, "function": {"name": "f"}}]}],
        "id must be a string",
        "messages.0.tool_calls.0.id",
    ),
    (
        [{**USER[0], "tool_calls": [{"function": {"name": "f"}}]}],
        "only an assistant calls tools",
        "messages.0.tool_calls",
    ),
    ([{**USER[0], "tool_calls": [{}] * 1025}], "at most 1024 calls", "messages.0.tool_calls"),
    (
        [{"role": "assistant", "content": "a", "function_call": {"name": "f"}}],
        "the old form of a call",
        "messages.0.function_call",
    ),
    ([{**USER[0], "reasoning": 5}], "must be text", "messages.0.reasoning"),
    (USER * 10_001, "at most 10000 entries", "messages"),
]


@pytest.mark.parametrize(("messages", "message", "field"), MESSAGES)
def test_messages_that_are_refused(messages, message, field):
    with pytest.raises(BadRequest) as refused:
        write(PLAIN, messages)
    assert message in refused.value.message
    assert refused.value.param == field


def test_media_are_named_as_what_this_model_does_not_take():
    with pytest.raises(Unsupported, match="text only"):
        write(PLAIN, [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])


def test_arguments_of_tool_calls_are_objects_for_the_template():
    source = "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments.city }}{% endfor %}{% endfor %}"
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"city": "Oslo"}'}}
    assert write(source, [{"role": "assistant", "content": None, "tool_calls": [call]}]) == "Oslo"


CALLS = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content + '' }}"
    "{% for c in m.tool_calls %}<{{ c.function.name }}>{% endfor %}{% endfor %}"
)
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def test_an_answer_of_calls_only():
    """Content is null; a template that cannot write null gets an empty text."""
    messages = [*USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "content": "5"}]
    assert write(CALLS, messages) == "[user]hi[assistant]<f>[tool]5"
    aware = CALLS.replace("m.content + ''", "'-' if m.content is none else m.content")
    assert write(aware, messages) == "[user]hi[assistant]-<f>[tool]5"
    assert write(CALLS.replace("m.content + ''", "m.content"), messages) == "[user]hi[assistant]<f>[tool]5"
    empty = [*USER, {"role": "assistant", "content": "a", "tool_calls": []}]
    defined = "{% for m in messages %}{{ m.tool_calls is defined }}{% endfor %}"
    assert write(defined, empty) == "FalseFalse"


def test_developers_are_the_system_to_templates_that_do_not_know_them():
    messages = [{"role": "developer", "content": "be brief"}, *USER]
    assert write(PLAIN, messages).startswith("<s>[system]be brief")
    assert write(PLAIN + "{# developer #}", messages).startswith("<s>[developer]be brief")


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_earlier_reasoning_has_both_names(name):
    source = "{% for m in messages %}{{ m.reasoning }}{{ m.reasoning_content }}{% endfor %}"
    assert write(source, [*USER, {"role": "assistant", "content": "a", name: "hm"}]) == "hmhm"


def test_tools_have_a_template_of_their_own_where_there_is_one():
    template = ChatTemplate({"default": "plain", "tool_use": "{{ tools | tojson }}"}, SPECIALS)
    assert template.render(USER) == "plain"
    assert template.render(USER, tools=[{"b": "é<", "a": 1}]) == '[{"b": "é<", "a": 1}]'


def test_no_template_is_said():
    with pytest.raises(BadRequest, match="no chat template: give one with --chat-template"):
        ChatTemplate({}, SPECIALS).render(USER)
    assert not ChatTemplate({}, SPECIALS).exists


def test_what_templates_expect_of_their_surroundings():
    assert write("{% generation %}a{% endgeneration %}") == "a"
    assert write("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert (
        write("{{ '* %s of 20260101' % 'x' }}{{ '{}: 99999999 {:>3}'.format(1, 2) }}")
        == "* x of 202601011: 99999999   2"
    )
    assert len(write("{{ strftime_now('%Y-%m-%d') }}")) == 10
    assert (
        write("{{ {'b': 1, 'a': [true]} | tojson(indent=1, sort_keys=true) }}") == '{\n "a": [\n  true\n ],\n "b": 1\n}'
    )
    assert write("  {% if true %}\n  x\n  {% endif %}\n") == "  x\n"
    assert write("{{ x }}", chat_template_kwargs={"x": 5}) == "5"


REFUSING = [
    (
        "{{ raise_exception('roles must alternate') }}",
        "the chat template refuses the conversation: roles must alternate",
    ),
    ("{{ messages[0].content + 5 }}", "TypeError"),
    ("{{ nothing.at.all }}", "'nothing' is undefined"),
    ("{{ ''.__class__.__mro__ }}", "unsafe"),
    ("{{ messages.append(1) }}", "unsafe|not safely callable"),
]


@pytest.mark.parametrize(("source", "message"), REFUSING)
def test_what_a_template_refuses_is_the_callers_to_read(source, message):
    with pytest.raises(BadRequest, match=message):
        write(source)


HEAVY = [
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "{% for i in range(10**9) %}{% endfor %}",
    "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "{{ 'a' * 10**9 }}",
    "{{ 10**9 * 'a' }}",
    "{{ 10 ** (10 ** 10) }}",
    "{{ [0] * 10**9 }}",
    "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{{ 'a'.ljust(10**9) }}",
    "{{ 'a' | center(10**9) }}",
    "{{ 'a\n' | indent(10**9) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%1000000000d' | format(1) }}",
    "{{ '%*d' % (10**9, 1) }}",
    "{{ '{:>1000000000}'.format(1) }}",
    "{{ '{x:>1000000000}'.format_map({'x': 1}) }}",
    "{{ '{:{}}'.format(1, 10**9) }}",
    "{{ ('a' * 10000) | replace('a', 'a' * 10000) }}",
    "{{ ('a' * 10000).replace('a', 'a' * 10000) }}",
    "{{ [1] | batch(10**9, 0) | list | length }}",
    "{% for i in range(90000) %}{{ 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' * 100 }}{% endfor %}",
    "{% for i in range(1000) %}{% set x = 'a' * 15999999 %}{% endfor %}",
    "{% set ns = namespace(x=0) %}{% for i in range(1000) %}{% set ns.x = [ns.x, ['a'] * 1999999] %}{% endfor %}",
    "{{ ','.join(['a' * 15999999] * 1000) | length }}",
    "{{ (['a' * 15999999] * 1000) | join | length }}",
    "{{ range(1000) | map('string') | map('center', 15999999) | join | length }}",
    "{{ (['a' * 15999999] * 1000) | tojson | length }}",
    "{{ (['a' * 15999999] * 1000) | string | length }}",
    "{{ ['a' * 15999999] * 1000 }}",
    "{{ ('%s' % [['a' * 15999999] * 1000]) | length }}",
    "{{ '{}'.format(['a' * 15999999] * 1000) | length }}",
    "{{ (['a' * 15999999] * 1000 ~ 'x') | length }}",
    "{{ ('a' * 10000).translate({97: 'b' * 1000000}) | length }}",
    "{{ (1).to_bytes(10**10, 'big') | length }}",
    "{% set ns = namespace(x='a' * 99) %}{% for i in range(40) %}{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}"
    "{% set ns.x = y %}{% endfor %}{{ ns.x | length }}",
    "{% set y %}{% for i in range(99999) %}" + "z" * 50_000 + "{% endfor %}{% endset %}{{ y | length }}",
    "{% macro m() %}" + "z" * 50_000 + "{% endmacro %}{% for i in range(99999) %}{% set x = m() %}{% endfor %}",
    "{% for i in range(99999) %}{% set x = [" + "i, " * 20_000 + "] %}{% endfor %}",
    "{% set x = [0] * 1999999 %}{% for i in range(99999) %}{% set y = x[1:] %}{% endfor %}",
    "{% set ns = namespace(x=3) %}{% for i in range(40) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "{% set ns = namespace(a=1, b=1) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}"
    "{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}",
    "{{ ([[0] * 1999999] * 1000) | sum(start=[]) | length }}",
    "{{ ('a ' * 999999) | wordwrap(1, wrapstring='b' * 999999) | length }}",
    "{{ strftime_now('%1000000000Y') }}",
]
#: Jinja takes these, Python's compiler does not.
NESTED = [
    "{% for a in b %}" * 30 + "{% endfor %}" * 30,
    "{{ " + "(" * 300 + "1" + ")" * 300 + " }}",
    "{% if 1 %}" * 2000 + "{% endif %}" * 2000,
    "{{ " + "+".join("1" * 20_000) + " }}",
]


@pytest.mark.parametrize("source", NESTED)
def test_a_template_that_cannot_be_compiled(source):
    with pytest.raises(BadRequest, match="deeply nested"):
        write("", chat_template=source)
    with pytest.raises(ConfigError, match="deeply nested"):
        write(source)


def test_a_template_of_a_request_has_a_longest_size():
    with pytest.raises(BadRequest, match="at most"):
        write("", chat_template="a" * 300_000)


def test_a_long_conversation_stays_in_the_limits():
    """What costs is what a template makes, not what it is given."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": "word " * 40} for i in range(5000)]
    source = (
        "{% for m in messages %}{% if m.role == 'user' and not loop.last %}{{ '<u>' + m.content | trim }}"
        "{% elif messages | length > 3 %}{{ m.content.split('</think>')[-1].strip('\n') ~ '.' }}{% endif %}{% endfor %}"
    )
    assert len(write(source, messages)) > 5000 * 195


@pytest.mark.parametrize("source", HEAVY)
def test_a_template_has_an_end(source, monkeypatch):
    monkeypatch.setattr(budget, "MAX_STEPS", 20_000)
    with pytest.raises(BadRequest, match="the chat template"):
        write(source)


def test_a_template_has_an_end_in_time(monkeypatch):
    monkeypatch.setattr(budget, "MAX_SECONDS", 0.05)
    monkeypatch.setattr(budget, "MAX_STEPS", 10**12)
    with pytest.raises(BadRequest, match="seconds"):
        write("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}")


def test_a_conversation_that_cannot_fit_is_refused_while_it_is_written():
    with pytest.raises(BadRequest, match="more than 10 characters"):
        write(PLAIN, max_chars=10)


def test_reserved_names_and_foreign_templates():
    for name in ("messages", "tools", "add_generation_prompt", "chat_template", "tokenize"):
        with pytest.raises(BadRequest, match="may not set"):
            write(PLAIN, chat_template_kwargs={name: 1})
    assert write(PLAIN, chat_template="{{ messages[0].content }}!") == "hi!"
    with pytest.raises(BadRequest, match="chat_template is no Jinja"):
        write(PLAIN, chat_template="{% if %}")
    with pytest.raises(ConfigError, match="the chat template is no Jinja: line 2"):
        ChatTemplate({"default": "\n{% if %}"}, SPECIALS)


def test_the_tokenizers_own_template():
    template = ChatTemplate.of(small())
    assert template.render(USER) == "<|turn|>user\nhi<|turn_end|>\n<|turn|>assistant\n"
    assert ChatTemplate.of(small(), "given").render(USER) == "given"


def test_a_template_that_does_not_show_tools_is_told_of_once(caplog):
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    template = ChatTemplate({"default": PLAIN + "{# tools #}{{ 'tools' }}"}, SPECIALS)
    template.render(USER)
    assert not caplog.records
    template.render(USER, tools=tools)
    template.render(USER, tools=tools)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "does not show tools" in caplog.text
    caplog.clear()
    shows = "{% if custom is defined %}{% set tools = custom %}{% endif %}{% if tools %}{{ tools | tojson }}{% endif %}"
    for templates in ({"default": PLAIN + shows}, {"default": PLAIN, "tool_use": PLAIN + shows}):
        ChatTemplate(templates, SPECIALS).render(USER, tools=tools)
    template.render(USER, tools=tools, chat_template=PLAIN)
    assert not caplog.records
