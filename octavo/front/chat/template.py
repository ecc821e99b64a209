"""ChatTemplate: a conversation to the text that the model was trained on."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import jinja2
import jinja2.meta

from octavo.common.log import logger
from octavo.errors import BadRequest, ConfigError
from octavo.front.chat.budget import MAX_STRING, TooLong
from octavo.front.chat.messages import Takes, normalise
from octavo.front.chat.sandbox import Environment, rendered
from octavo.front.tokenizers.base import Tokenizer

_log = logger(__name__)
#: What a caller may not set by ``chat_template_kwargs``: they have fields and checks of their own (CVE-2025-62426).
RESERVED = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize"}
    | {"raise_exception", "strftime_now"}
)
#: Characters of a template that comes with a request.
MAX_TEMPLATE = 1 << 18
_PROBE = "octavo probe 7f3a"
_CUT = "octavo cut 91c5"
_CALL = {"id": "call00001", "type": "function", "function": {"name": "probe", "arguments": {}}}


class ChatTemplate:
    """A compiled template and the special tokens it may write. Methods may be called from any thread.

    ``templates``: by name; "default", and where there is one "tool_use" for conversations with tools.
    Raises ``ConfigError`` where a template is no Jinja.
    """

    def __init__(self, templates: Mapping[str, str], specials: Mapping[str, str]):
        self._environment = Environment()
        self._specials = dict(specials)
        self._sources = dict(templates)
        self._templates: dict[str, jinja2.Template] = {}
        self._warned = False
        for name, source in self._sources.items():
            try:
                self._templates[name] = self._environment.from_string(source)
            except jinja2.TemplateSyntaxError as error:
                raise ConfigError(f"the chat template is no Jinja: line {error.lineno}: {error.message}") from None

    @classmethod
    def of(cls, tokenizer: Tokenizer, given: str | None = None) -> "ChatTemplate":
        """The model's own template, or the text ``given`` instead of it. There may be none: ``render`` then says so."""
        templates = tokenizer.specials.templates if given is None else {"default": given}
        return cls(templates, tokenizer.specials.names)

    @property
    def exists(self) -> bool:
        return bool(self._templates)

    @property
    def source(self) -> str:
        """The text of every template."""
        return "\n".join(self._sources.values())

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        max_chars: int = MAX_STRING,
    ) -> str:
        """The conversation as text, ready for the model's answer.

        ``continue_final_message``: the text ends inside the last message, for the model to go on with it.
        ``chat_template``: another template, for this call. Raises ``BadRequest`` with the template's own message where
        it refuses the conversation, and ``TooLong`` where the text would pass ``max_chars`` characters.
        """
        if continue_final_message and add_generation_prompt:
            raise BadRequest(
                "continue_final_message goes on with the last message, add_generation_prompt begins a new one: "
                "ask for one of them",
                "continue_final_message",
            )
        more = dict(chat_template_kwargs or {})
        for name in more:
            if name in RESERVED:
                raise BadRequest(f"chat_template_kwargs may not set {name!r}", "chat_template_kwargs")
        template, source = self._pick(chat_template, tools)
        if tools and chat_template is None and not self._warned:
            self._warn(source)
        ready = normalise(messages, self._takes(template), developer="developer" in source)
        if continue_final_message:
            if messages[-1].get("content") is None:
                raise BadRequest("continue_final_message needs a last message with text", "continue_final_message")
            _mark(ready[-1])
        variables = {
            "tools": list(tools) if tools else None,
            "documents": list(documents) if documents else None,
            **self._specials,
            **more,
            "messages": ready,
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._run(template, variables, max_chars)
        return _cut(text) if continue_final_message else text

    def _pick(self, given: str | None, tools: Any) -> tuple[jinja2.Template, str]:
        """The template for a conversation, and its source."""
        if given is not None:
            if not isinstance(given, str):
                raise BadRequest("chat_template must be text", "chat_template")
            if len(given) > MAX_TEMPLATE:
                raise BadRequest(
                    f"chat_template may have at most {MAX_TEMPLATE} characters, got {len(given)}", "chat_template"
                )
            try:
                return self._environment.from_string(given), given
            except jinja2.TemplateError as error:
                raise BadRequest(f"chat_template is no Jinja: {error}", "chat_template") from None
        if tools and "tool_use" in self._templates:
            return self._templates["tool_use"], self._sources["tool_use"]
        if "default" not in self._templates:
            raise BadRequest(
                "this model has no chat template: give one with --chat-template, or ask for completions of plain text",
                "messages",
            )
        return self._templates["default"], self._sources["default"]

    def _warn(self, source: str) -> None:
        """Once: that ``source``, the template for conversations with tools, does not show them."""
        self._warned = True
        if "tools" not in jinja2.meta.find_undeclared_variables(self._environment.parse(source)):
            _log.warning(
                "the chat template does not show tools to the model: it can only guess what they are called and take "
                "(another template: --chat-template)"
            )

    def _run(self, template: jinja2.Template, variables: dict[str, Any], max_chars: int) -> str:
        try:
            return rendered(template, variables, max_chars)
        except TooLong:
            raise  # the caller set the limit and knows what it means
        except jinja2.TemplateError as error:
            raise BadRequest(f"the chat template refuses the conversation: {error}", "messages") from None
        except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError, RecursionError, MemoryError) as error:
            what = f"{type(error).__name__}: {error}"
            raise BadRequest(f"the chat template cannot write the conversation: {what[:300]}", "messages") from None

    def _takes(self, template: jinja2.Template) -> Takes:
        """What the template takes: tried out, since templates do not say."""
        known = self._probed.get(template)
        if known is None:
            parts = self._try(template, [_user([{"type": "text", "text": _PROBE}])])
            text = self._try(template, [_user(_PROBE)]) or not parts
            calls = {"role": "assistant", "content": None, "tool_calls": [_CALL]}
            null = self._try(template, [_user(_PROBE if text else [{"type": "text", "text": _PROBE}]), calls])
            known = Takes(parts, text, null)
            if template in self._templates.values():
                self._probed[template] = known
        return known

    @cached_property
    def _probed(self) -> dict[jinja2.Template, Takes]:
        return {}

    def _try(self, template: jinja2.Template, messages: list[dict[str, Any]]) -> bool:
        """Whether the template writes ``messages`` as text, and no Python of them."""
        variables: dict[str, Any] = {"tools": None, "documents": None, **self._specials, "add_generation_prompt": True}
        try:
            text = rendered(template, variables | {"messages": messages}, MAX_STRING)
        except Exception:  # whatever it is, such content is not for this template
            return False
        return _PROBE in text and not any(word in text for word in ("'type'", '"type"', "None"))


def _user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _mark(message: dict[str, Any]) -> None:
    """Put a mark behind the last message's text: the template may trim or wrap it, and the mark shows where it ends."""
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = content + _CUT
    elif isinstance(content, list) and content:
        content[-1] = {**content[-1], "text": content[-1]["text"] + _CUT}
    else:
        raise BadRequest("continue_final_message needs a last message with text", "continue_final_message")


def _cut(text: str) -> str:
    at = text.rfind(_CUT)
    if at < 0:
        raise BadRequest(
            "the chat template does not write the last message, so it cannot be continued", "continue_final_message"
        )
    return text[:at]
