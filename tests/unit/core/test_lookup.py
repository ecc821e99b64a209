"""Where tokens came before, against a plain search."""

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.scheduler.lookup import TRIES, Lookup


def search(known: list[int], shortest: int, longest: int, count: int) -> list[int]:
    """Of the last places at which the end of ``known`` came before, that with the longest match: what followed."""

    def alike(end: int) -> int:
        return next((n for n in range(longest) if n >= end or known[end - 1 - n] != known[len(known) - 1 - n]), longest)

    places = [end for end in range(shortest, len(known)) if alike(end) >= shortest][::-1][:TRIES]
    if not places:
        return []
    end = max(places, key=lambda place: (alike(place), place))
    drafts = known[end:]
    while len(drafts) < count:
        drafts.append(drafts[len(drafts) - (len(known) - end)])
    return drafts[:count]


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=120),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(1, 6),
    st.integers(0, 2**31),
)
def test_a_lookup_finds_what_a_search_finds_however_the_tokens_arrive(tokens, shortest, more, count, seed):
    rng, longest = random.Random(seed), shortest + more
    lookup = Lookup(shortest, longest, 200)
    at = 0
    while at < len(tokens):
        at = min(len(tokens), at + rng.choice([1, 1, 2, 60]))
        found = lookup.find(np.array(tokens[:at], np.int32), count)
        assert found == search(tokens[:at], shortest, longest, count)


def test_what_repeats_goes_on_repeating():
    tokens = np.array([9, 1, 2, 3, 1, 2, 3, 1, 2], np.int32)
    assert Lookup(2, 4, 20).find(tokens, 8) == [3, 1, 2, 3, 1, 2, 3, 1]


def test_nothing_is_found_where_nothing_came_before():
    assert Lookup(2, 4, 20).find(np.arange(9, dtype=np.int32), 4) == []
    assert Lookup(3, 4, 20).find(np.array([5, 5], np.int32), 4) == []
