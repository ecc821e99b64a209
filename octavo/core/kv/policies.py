"""What one kind of attention keeps: which cached pages serve a prefix, and which pages nobody will look at again."""

from collections.abc import Sequence
from typing import Protocol

from octavo.common.math import cdiv
from octavo.wire.kv import KVSpec


class Policy(Protocol):
    """The rule of one KV group. ``found[i]`` is the cached page of position i of the chain, 0 if there is none.

    ``needs_all``: a prefix needs every page before it, so that nobody has to look behind the first one that is missing.
    """

    needs_all: bool

    def longest(self, found: Sequence[int], most: int) -> int:
        """The largest n <= ``most`` such that a prefix of n pages can be continued from the cache."""

    def first(self, computed: int) -> int:
        """Index of the first page that a token at position ``computed`` or later still looks at."""

    def most(self, length: int, step: int) -> int:
        """Pages that a request of ``length`` tokens holds at most when up to ``step`` tokens are in flight."""


class Full:
    """Every token looks at every token before it."""

    needs_all = True

    def __init__(self, page: int):
        self.page = page

    def longest(self, found: Sequence[int], most: int) -> int:
        for index in range(most):
            if not found[index]:
                return index
        return most

    def first(self, computed: int) -> int:
        return 0

    def most(self, length: int, step: int) -> int:
        return cdiv(length, self.page)


class Sliding:
    """A token looks at ``window`` tokens, itself included: pages before them are given back as it moves on."""

    needs_all = False

    def __init__(self, page: int, window: int):
        self.page = page
        self.window = window

    def longest(self, found: Sequence[int], most: int) -> int:
        for length in range(most, 0, -1):
            start = self.first(length * self.page)
            if all(found[start:length]):
                return length
        return 0

    def first(self, computed: int) -> int:
        return max(0, computed - self.window + 1) // self.page

    def most(self, length: int, step: int) -> int:
        # One page more than the span of tokens: it may begin and end inside a page.
        return min(cdiv(length, self.page), cdiv(self.window - 1 + step, self.page) + 1)


def policy(spec: KVSpec, page: int) -> Policy:
    """The rule for a spec."""
    return Full(page) if spec.window is None else Sliding(page, spec.window)
