"""The Jinja that templates run in: nothing of Python in reach, and an end to time and size.

A template is written by whoever made the model, and may be sent with a request where that is allowed. A rendering has
so many steps: loops, calls and filters take one, and whatever makes text or lists takes more, by their size and before
they are made. So time and memory are bounded together; what goes over the limit raises ``TemplateLimit``.
"""

import datetime
import json
import re
from collections.abc import Generator, Iterable, Iterator
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes as nodes
import jinja2.sandbox
from jinja2.exceptions import TemplateError
from jinja2.filters import make_attrgetter

from octavo.front.chat.budget import (
    ELEMENT,
    STEP_CHARS,
    TemplateLimit,
    TooLong,
    cost,
    grow,
    limited,
    tick,
    weigh,
)

#: Bits of a number: nothing that is said in a conversation has more.
_MAX_BITS = 4096
#: Characters of a form of time.
_MAX_FORM = 256
_MAX_INDENT = 16
#: Literals of so many elements or characters are paid for each time they are made.
_LARGE = 16
#: Methods that make much of little, and that no template needs.
_REFUSED = frozenset({"translate", "maketrans", "to_bytes", "from_bytes"})
_SPLITS = frozenset({"split", "rsplit", "splitlines"})
_WIDTH_METHODS = frozenset({"ljust", "rjust", "center", "zfill", "expandtabs"})
_PERCENT = re.compile(r"%(?:\([^)]*\))?[#0\- +]*(\*|[0-9]*)(?:\.(\*|[0-9]*))?")
_BRACES = re.compile(r"\{[^{}:]*:([^{}]*)(\{?)")


def rendered(template: jinja2.Template, variables: dict[str, Any], max_chars: int) -> str:
    """The template's text. Raises ``TooLong`` past ``max_chars`` characters, ``TemplateLimit`` past ``MAX_STEPS``."""
    with limited():
        parts, size = [], 0
        for part in template.generate(variables):
            size += len(part)
            if size > max_chars:
                raise TooLong(f"the chat template makes more than {max_chars} characters", "messages")
            parts.append(part)
        return "".join(parts)


def _counted(items: Iterable) -> Iterator:
    for item in items:
        tick()
        yield item


def _measured(value: Any) -> Any:
    if isinstance(value, str):
        grow(len(value))
    elif isinstance(value, (list, tuple)):
        grow(ELEMENT * len(value))
    elif isinstance(value, Generator):
        return _counted(value)
    return value


def _written(value: Any) -> Any:
    """Every expression that the template writes or compares comes by here."""
    weigh(value)
    return value


@jinja2.pass_context
def _turn(context: Any, text: str, count: int) -> str:
    """Written at the head of a body: what it costs to go through it once."""
    tick(count)
    return text


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
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[Generation, jinja2.ext.loopcontrols],
            autoescape=False,
            finalize=_written,
        )
        self.filters |= {"tojson": _tojson, "join": _join, "format": _format}
        for name, original in self.filters.items():
            self.filters[name] = _guarded(original, _CHECKS.get(name, _free))
        self.filters |= {"__counted": _counted, "__measured": _measured, "__weighed": _written, "__turn": _turn}
        for name in _COMPARING:
            self.tests[name] = _guarded(self.tests[name], _check_written)
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, "__counted", [], [], None, None, lineno=loop.lineno)
        for body in list(tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))):
            _charge(body)
        _measure_literals(tree)
        return tree

    def from_string(self, source: Any, *args: Any, **kwargs: Any) -> jinja2.Template:
        """Raises ``TemplateSyntaxError`` for whatever is no template, also for what only Python's compiler refuses."""
        try:
            with limited():
                return super().from_string(source, *args, **kwargs)
        except jinja2.TemplateError:
            raise
        except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
            raise jinja2.TemplateSyntaxError(f"too large or too deeply nested ({type(error).__name__})", 1) from None

    def call(self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        tick()
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if name in _REFUSED:
            raise TemplateLimit(f"the template may not call {name}")
        if isinstance(owner, str):
            if name in _WIDTH_METHODS:
                grow(max((arg for arg in args if isinstance(arg, int)), default=0) * max(len(owner), 1))
            elif name == "replace" and len(args) >= 2:
                _check_replace(owner, *args)
            elif name == "join" and args:
                args = (_joined(owner, args[0]), *args[1:])
            elif name in _SPLITS:
                _check_split(owner, *args)
            else:
                grow(len(owner))
        return _measured(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Any:
        """``str.format`` and ``format_map``: Jinja replaces them by safe ones, which still make any width."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def checked(*args: Any, **kwargs: Any) -> str:
            _check_braces(value.__self__)
            weigh(args)
            weigh(kwargs)
            return wrapped(*args, **kwargs)

        return checked

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * max(right, 0) if operator == "**" else left.bit_length() + right.bit_length()
            if bits > _MAX_BITS:
                raise TemplateLimit(f"the template makes a number of more than {_MAX_BITS} bits")
        elif operator == "*":
            for sequence, count in ((left, right), (right, left)):
                if isinstance(count, int):
                    grow(cost(sequence) * count)
        elif operator == "+":
            grow(cost(left) + cost(right))
        elif operator == "%" and isinstance(left, str):
            _check_percent(left)
            weigh(right)
        return super().call_binop(context, operator, left, right)


def _charge(body: Any) -> None:
    """Each turn of a body is paid by the text in it."""
    size = sum([len(data.data) for data in body.find_all(nodes.TemplateData)])
    count = nodes.Const(1 + size // STEP_CHARS)
    turn = nodes.Filter(nodes.Const(""), "__turn", [count], [], None, None, lineno=body.lineno)
    body.body.insert(0, nodes.Output([turn], lineno=body.lineno))


def _measure_literals(tree: nodes.Template) -> None:
    """What the language itself makes is measured: ``a ~ b``, ``a[b:c]`` and large literals; and what it compares."""
    for node in list(tree.find_all(nodes.Node)):
        for name, value in node.iter_fields():
            if _grows(value):
                setattr(node, name, _measure(value))
            elif isinstance(value, list):
                value[:] = [_measure(item) if _grows(item) else item for item in value]


def _grows(value: Any) -> bool:
    if isinstance(value, (nodes.Concat, nodes.Compare)):
        return True
    if isinstance(value, nodes.Getitem):
        return isinstance(value.arg, nodes.Slice)
    if isinstance(value, nodes.Tuple) and value.ctx != "load":
        return False
    return isinstance(value, (nodes.List, nodes.Tuple, nodes.Dict)) and len(value.items) > _LARGE


def _measure(node: Any) -> nodes.Expr:
    if isinstance(node, nodes.Concat):
        # Its parts become text: each is measured like what is written.
        node.nodes = [nodes.Filter(part, "string", [], [], None, None, lineno=node.lineno) for part in node.nodes]
    if isinstance(node, nodes.Compare):
        # Two values that share their parts are compared part by part, as often as each is there.
        sides: tuple[Any, ...] = (node, *node.ops)
        for side in sides:
            if not isinstance(side.expr, nodes.Const):
                side.expr = nodes.Filter(side.expr, "__weighed", [], [], None, None, lineno=node.lineno)
        return node
    return nodes.Filter(node, "__measured", [], [], None, None, lineno=node.lineno)


def _guarded(original: Any, check: Any) -> Any:
    """``original`` behind ``check``, which is called with the same arguments (without the environment)."""
    passes = getattr(original, "jinja_pass_arg", None) is not None

    def guarded(*args: Any, **kwargs: Any) -> Any:
        tick()
        check(*args[passes:], **kwargs)
        return _measured(original(*args, **kwargs))

    if passes:
        guarded.jinja_pass_arg = original.jinja_pass_arg  # type: ignore[attr-defined]
    return guarded


def _free(value: Any, *args: Any, **kwargs: Any) -> None:
    """Most filters make no more than they are given."""
    if isinstance(value, str):
        grow(len(value))
    elif isinstance(value, (list, tuple)):
        tick(len(value) // STEP_CHARS)


def _check_written(value: Any, *args: Any, **kwargs: Any) -> None:
    for given in (value, args, kwargs):
        weigh(given)


def _check_elements(value: Any, *args: Any, **kwargs: Any) -> None:
    """A list of characters, each an object."""
    if isinstance(value, str):
        grow(ELEMENT * len(value))


def _check_width(value: Any, *args: Any, **kwargs: Any) -> None:
    grow(ELEMENT * max((arg for arg in (*args, *kwargs.values()) if isinstance(arg, int)), default=0))


def _check_center(value: Any, *args: Any, **kwargs: Any) -> None:
    grow(max((arg for arg in (*args, *kwargs.values()) if isinstance(arg, int)), default=0))


def _check_indent(text: Any, width: Any = 4, *args: Any, **kwargs: Any) -> None:
    each = width if isinstance(width, int) else cost(width)
    grow(len(str(text)) + each * (str(text).count("\n") + 1))


def _check_wordwrap(text: Any, *args: Any, **kwargs: Any) -> None:
    between = max((len(arg) for arg in (*args, *kwargs.values()) if isinstance(arg, str)), default=1)
    grow(len(str(text)) * between)


def _check_replace(text: Any, old: Any, new: Any, *args: Any, **kwargs: Any) -> None:
    text, old, new = str(text), str(old), str(new)
    times = text.count(old) if old else len(text) + 1
    grow(len(text) + times * max(len(new) - len(old), 0))


def _check_split(text: str, separator: Any = None, *args: Any) -> None:
    if isinstance(separator, str) and separator:
        parts = text.count(separator)
    else:
        parts = sum([text.count(space) for space in " \t\n\r\v\f"])
    grow(len(text) + 6 * ELEMENT * parts)


def _check_sum(value: Any, *args: Any, **kwargs: Any) -> None:
    """A sum of lists is made list by list."""
    if isinstance(value, (list, tuple)):
        size = 0
        for item in value:
            size += cost(item)
            grow(size)


#: Tests that look into values.
_COMPARING = (
    "==",
    "eq",
    "equalto",
    "!=",
    "ne",
    ">",
    "gt",
    "greaterthan",
    ">=",
    "ge",
    "<",
    "lt",
    "lessthan",
    "<=",
    "le",
    "in",
)
#: What is paid, or refused, before a filter begins.
_CHECKS = {
    "batch": _check_width,
    "center": _check_center,
    "dictsort": _check_written,
    "groupby": _check_written,
    "indent": _check_indent,
    "list": _check_elements,
    "max": _check_written,
    "min": _check_written,
    "pprint": _check_written,
    "replace": _check_replace,
    "slice": _check_width,
    "sort": _check_written,
    "string": _check_written,
    "sum": _check_sum,
    "unique": _check_written,
    "urlencode": _check_written,
    "wordwrap": _check_wordwrap,
    "xmlattr": _check_written,
}


def _joined(separator: str, items: Any) -> list[Any]:
    """``items``, paid for as the text that they make between separators."""
    found = []
    for item in items:
        tick()
        weigh(item)
        grow(len(separator))
        found.append(item)
    return found


@jinja2.pass_environment
def _join(environment: Environment, value: Any, d: str = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    return str(d).join([str(item) for item in _joined(str(d), value)])


def _format(value: Any, *args: Any, **kwargs: Any) -> str:
    _check_percent(str(value))
    weigh(args)
    weigh(kwargs)
    return str(value) % (kwargs or args)


def _check_percent(form: str) -> None:
    """A width or precision of ``%`` is a number of characters to make."""
    for found in _PERCENT.finditer(form):
        for number in found.groups():
            if number == "*":
                raise TemplateLimit("the template formats with a width that is computed")
            grow(int(number or 0))


def _check_braces(form: str) -> None:
    """As ``_check_percent``, for ``str.format``."""
    for spec, nested in _BRACES.findall(form):
        if nested:
            raise TemplateLimit("the template formats with a width that is computed")
        for number in re.findall("[0-9]+", spec):
            grow(int(number))


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    if not isinstance(form, str) or len(form) > _MAX_FORM or re.search("%[^a-zA-Z%]*[0-9]", form):
        raise TemplateLimit("the template asks for the time in a form that is too long, or of a given width")
    return datetime.datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As Hugging Face's templates have it: no HTML escapes."""
    weigh(value)
    if isinstance(indent, int):
        indent = min(indent, _MAX_INDENT)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
