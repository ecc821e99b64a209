"""Lookup: where the last tokens of a sequence stood before, found in time that does not grow with its length."""

import numpy as np

from octavo.common.math import next_power_of_two
from octavo.wire.arrays import Ints

#: Earlier places that one search looks at, the latest first.
TRIES = 16
#: Tokens that are added at once from here on are hashed as columns.
BULK = 48

_FACTOR = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


class Lookup:
    """Of one sequence of at most ``most`` tokens. Runs of ``shortest`` tokens are chained by their hash, for 4 bytes a
    token and 4 to 8 for the heads of the chains; a match is then compared for up to ``longest`` tokens."""

    def __init__(self, shortest: int, longest: int, most: int):
        self._shortest, self._longest = shortest, longest
        self._shift = 64 - max(6, next_power_of_two(most).bit_length() - 1)
        self._heads = np.full(1 << (64 - self._shift), -1, np.int32)
        self._before = np.full(most, -1, np.int32)
        self._known = 0

    def find(self, tokens: Ints, count: int) -> list[int]:
        """What followed the last tokens when they stood in ``tokens`` before, ``count`` tokens of it; none if they did
        not. Of several places the one with the longest match counts, then the latest. ``tokens``: those of the call
        before, and what came since."""
        self._extend(tokens)
        end = len(tokens)
        if end <= self._shortest:
            return []
        tail = tokens[max(0, end - self._longest) : end].tolist()
        best, found = self._shortest - 1, -1
        at = int(self._before[end - 1])
        for _ in range(TRIES):
            if at < 0:
                break
            same = _alike(tail, tokens[max(0, at + 1 - self._longest) : at + 1].tolist())
            if same > best:
                best, found = same, at
                if same == self._longest:
                    break
            at = int(self._before[at])
        if found < 0:
            return []
        drafts = tokens[found + 1 : found + 1 + count].tolist()
        while len(drafts) < count:  # up to the end: what repeats goes on repeating
            drafts.append(drafts[len(drafts) - (end - found - 1)])
        return drafts

    def _extend(self, tokens: Ints) -> None:
        start = max(self._known, self._shortest - 1)
        if len(tokens) - start > BULK:
            self._extend_much(tokens, start)
        else:
            for end in range(start, len(tokens)):
                mixed = 0
                for token in tokens[end + 1 - self._shortest : end + 1].tolist():
                    mixed = (mixed + token + 1) * _FACTOR & _MASK
                place = mixed >> self._shift
                self._before[end] = self._heads[place]
                self._heads[place] = end
        self._known = len(tokens)

    def _extend_much(self, tokens: Ints, start: int) -> None:
        ends = np.arange(start, len(tokens))
        mixed = np.zeros(len(ends), np.uint64)
        for back in range(self._shortest - 1, -1, -1):
            mixed = (mixed + (tokens[ends - back].astype(np.uint64) + np.uint64(1))) * np.uint64(_FACTOR)
        places = (mixed >> np.uint64(self._shift)).astype(np.int64)
        order = np.argsort(places, kind="stable")
        sorted_places, sorted_ends = places[order], ends[order].astype(np.int32)
        fresh = np.ones(len(order), np.bool_)  # the first of its chain among these
        fresh[1:] = sorted_places[1:] != sorted_places[:-1]
        before = np.empty(len(order), np.int32)
        before[1:] = sorted_ends[:-1]
        before[fresh] = self._heads[sorted_places[fresh]]
        self._before[sorted_ends] = before
        last = np.append(fresh[1:], True)
        self._heads[sorted_places[last]] = sorted_ends[last]


def _alike(one: list[int], other: list[int]) -> int:
    """With how many tokens both end alike."""
    count = 0
    for left, right in zip(reversed(one), reversed(other), strict=False):
        if left != right:
            break
        count += 1
    return count
