"""What a rendering may cost: steps, time and text, paid before they are made. ``TemplateLimit`` is raised past them.

Outside of ``limited`` nothing is counted, but no text grows past ``MAX_STRING``.
"""

import contextlib
import contextvars
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jinja2.exceptions import TemplateError

from octavo.errors import BadRequest

#: Steps of one rendering: about a second, where they are simple ones.
MAX_STEPS = 1_000_000
#: Seconds of computing in one rendering, looked at every so many steps.
MAX_SECONDS = 5.0
_LOOK_EVERY = 4096
#: Characters of text that take a step.
STEP_CHARS = 64
#: Elements of a list weigh as much as so many characters.
ELEMENT = 8
#: Characters of any string on the way, whatever the prompt may have.
MAX_STRING = 16_000_000


@dataclass(slots=True)
class _Budget:
    """``look``: the number of steps at which the clock is looked at next. ``end``: of this thread's own time."""

    steps: int
    look: int
    end: float


_budget: contextvars.ContextVar[_Budget | None] = contextvars.ContextVar("budget", default=None)


class TemplateLimit(TemplateError):
    """The rendering takes too long or grows too large."""


class TooLong(BadRequest):
    """The text passes the limit of characters that its caller set."""


def tick(count: int = 1) -> None:
    """``count`` steps of a rendering."""
    left = _budget.get()
    if left is not None:
        left.steps -= count
        if left.steps < left.look:
            if left.steps < 0:
                raise TemplateLimit(f"the template takes more than {MAX_STEPS} steps")
            left.look = max(left.steps - _LOOK_EVERY, 0)
            if time.thread_time() > left.end:
                raise TemplateLimit(f"the template takes more than {MAX_SECONDS:g} seconds")


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """A rendering, or the compilation of a template, which computes what is constant in it."""
    token = _budget.set(_Budget(MAX_STEPS, max(MAX_STEPS - _LOOK_EVERY, 0), time.thread_time() + MAX_SECONDS))
    try:
        yield
    finally:
        _budget.reset(token)


def grow(size: int) -> None:
    """Pay for ``size`` characters that are about to be made, or just were."""
    if size > MAX_STRING:
        raise TemplateLimit(f"the template makes a text of more than {MAX_STRING} characters")
    tick(size // STEP_CHARS)


def cost(value: Any) -> int:
    """Characters that a text or a list weighs."""
    if isinstance(value, (list, tuple)):
        return ELEMENT * len(value)
    return len(value) if isinstance(value, (str, bytes)) else 0


def weigh(value: Any) -> None:
    """Pay for the text that ``value`` makes when it is written out, element by element."""
    if isinstance(value, str):
        grow(len(value))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            tick()
            weigh(key)
            weigh(item)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            tick()
            weigh(item)
