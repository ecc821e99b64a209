"""The Jinja that templates run in: nothing of Python in reach, and an end to time and size.

A template is written by whoever made the model, and may be sent with a request where that is allowed. Loops and calls
are counted, strings are measured where they grow; what goes over a limit raises ``TemplateLimit``.
"""

import contextvars
import datetime
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes as nodes
import jinja2.sandbox
from jinja2.exceptions import TemplateError

from octavo.errors import BadRequest

#: Turns of loops and calls of functions in one rendering: about a second.
MAX_STEPS = 1_000_000
#: Characters of any string on the way, whatever the prompt may have.
MAX_STRING = 16_000_000
_WIDTH_METHODS = frozenset({"ljust", "rjust", "center", "zfill", "expandtabs"})
_PERCENT = re.compile(r"%(?:\([^)]*\))?[#0\- +]*(\*|[0-9]*)(?:\.(\*|[0-9]*))?")
_BRACES = re.compile(r"\{[^{}:]*:([^{}]*)(\{?)")
_steps: contextvars.ContextVar[list[int] | None] = contextvars.ContextVar("steps", default=None)


class TemplateLimit(TemplateError):
    """The rendering takes too long or grows too large."""


class TooLong(BadRequest):
    """The text passes the limit of characters that its caller set."""


def tick() -> None:
    """One step of a rendering."""
    left = _steps.get()
    if left is not None:
        left[0] -= 1
        if left[0] < 0:
            raise TemplateLimit(f"the template takes more than {MAX_STEPS} steps")


def rendered(template: jinja2.Template, variables: dict[str, Any], max_chars: int) -> str:
    """The template's text. Raises ``TooLong`` past ``max_chars`` characters, ``TemplateLimit`` past ``MAX_STEPS``."""
    token = _steps.set([MAX_STEPS])
    try:
        parts, size = [], 0
        for part in template.generate(variables):
            size += len(part)
            if size > max_chars:
                raise TooLong(f"the chat template makes more than {max_chars} characters", "messages")
            parts.append(part)
        return "".join(parts)
    finally:
        _steps.reset(token)


def _counted(items: Iterable) -> Iterator:
    for item in items:
        tick()
        yield item


def _measured(value: Any) -> Any:
    if isinstance(value, str) and len(value) > MAX_STRING:
        raise TemplateLimit(f"the template makes a string of more than {MAX_STRING} characters")
    return value


def _refuse_growth(size: int) -> None:
    if size > MAX_STRING:
        raise TemplateLimit(f"the template makes a value of more than {MAX_STRING} elements")


def _size(value: Any) -> int:
    return len(value) if isinstance(value, (str, bytes, list, tuple)) else 0


class Generation(jinja2.ext.Extension):
    """``{% generation %}``: marks what the model said, for training; here only its body."""

    tags = {"generation"}

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja as Hugging Face's chat templates expect it, bounded."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols], autoescape=False
        )
        self.filters["tojson"] = _tojson
        self.filters["__counted"] = _counted
        self.filters["__measured"] = _measured
        for name, check in (("center", _check_width), ("indent", _check_indent), ("replace", _check_replace)):
            self.filters[name] = _guarded(self.filters[name], check)
        for name in ("batch", "slice"):
            self.filters[name] = _guarded(self.filters[name], _check_width)
        self.filters["join"] = _after(self.filters["join"])
        self.filters["format"] = _refused("format")
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, "__counted", [], [], None, None, lineno=loop.lineno)
        _measure_joins(tree)
        return tree

    def call(self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        tick()
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str):
            if name in _WIDTH_METHODS:
                _refuse_growth(max((arg for arg in args if isinstance(arg, int)), default=0) * max(len(owner), 1))
            elif name == "replace" and len(args) >= 2:
                _check_replace(owner, *args)
        return _measured(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Any:
        """``str.format`` and ``format_map``: Jinja replaces them by safe ones, which still make any width."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def checked(*args: Any, **kwargs: Any) -> str:
            _check_braces(value.__self__)
            return wrapped(*args, **kwargs)

        return checked

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for sequence, count in ((left, right), (right, left)):
                if isinstance(count, int) and not isinstance(sequence, int):
                    _refuse_growth(_size(sequence) * count)
            if isinstance(left, int) and isinstance(right, int):
                _refuse_growth(left.bit_length() + right.bit_length())
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _refuse_growth(left.bit_length() * max(right, 0))
        elif operator == "+":
            _refuse_growth(_size(left) + _size(right))
        elif operator == "%" and isinstance(left, str):
            _check_percent(left)
        return super().call_binop(context, operator, left, right)


def _measure_joins(tree: nodes.Template) -> None:
    """Every ``a ~ b`` is measured: repeated in a loop it doubles."""
    for node in list(tree.find_all(nodes.Node)):
        for field, value in node.iter_fields():
            if isinstance(value, nodes.Concat):
                setattr(node, field, _measure(value))
            elif isinstance(value, list):
                value[:] = [_measure(item) if isinstance(item, nodes.Concat) else item for item in value]


def _measure(node: nodes.Concat) -> nodes.Filter:
    return nodes.Filter(node, "__measured", [], [], None, None, lineno=node.lineno)


def _guarded(original: Any, check: Any) -> Any:
    """``original`` behind ``check``, which is called with the same arguments (without the environment)."""
    passes = getattr(original, "jinja_pass_arg", None) is not None

    def guarded(*args: Any, **kwargs: Any) -> Any:
        check(*args[passes:], **kwargs)
        return _measured(original(*args, **kwargs))

    if passes:
        guarded.jinja_pass_arg = original.jinja_pass_arg  # type: ignore[attr-defined]
    return guarded


def _after(original: Any) -> Any:
    return _guarded(original, lambda *args, **kwargs: None)


def _refused(name: str) -> Any:
    def refuse(text: Any, *args: Any, **kwargs: Any) -> Any:
        _check_percent(str(text))
        return _measured(str(text) % (kwargs or args))

    return refuse


def _check_width(value: Any, *args: Any, **kwargs: Any) -> None:
    _refuse_growth(max((arg for arg in (*args, *kwargs.values()) if isinstance(arg, int)), default=0))


def _check_indent(text: Any, width: Any = 4, *args: Any, **kwargs: Any) -> None:
    each = width if isinstance(width, int) else _size(width)
    _refuse_growth(len(str(text)) + each * (str(text).count("\n") + 1))


def _check_replace(text: Any, old: Any, new: Any, *args: Any, **kwargs: Any) -> None:
    text, old, new = str(text), str(old), str(new)
    times = text.count(old) if old else len(text) + 1
    _refuse_growth(len(text) + times * max(len(new) - len(old), 0))


def _check_percent(form: str) -> None:
    """A width or precision of ``%`` is a number of characters to make."""
    for found in _PERCENT.finditer(form):
        for number in found.groups():
            if number == "*":
                raise TemplateLimit("the template formats with a width that is computed")
            _refuse_growth(int(number or 0))


def _check_braces(form: str) -> None:
    """As ``_check_percent``, for ``str.format``."""
    for spec, nested in _BRACES.findall(form):
        if nested:
            raise TemplateLimit("the template formats with a width that is computed")
        for number in re.findall("[0-9]+", spec):
            _refuse_growth(int(number))


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As Hugging Face's templates have it: no HTML escapes."""
    return _measured(
        json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    )
