"""KVManager: page tables of requests, over one pool, for all groups at once."""

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.common.math import cdiv
from octavo.core.kv.hashing import Buffer, extend, model_root, request_root
from octavo.core.kv.policies import policy
from octavo.core.kv.pool import BlockPool
from octavo.wire.kv import KVLayout
from octavo.wire.request import AdapterRef, MediaRef

#: A page table a group: page ids from the first token on; 0 where the page was never needed or has left the window.
Tables = list[list[int]]


@dataclass(slots=True)
class Match:
    """A cached prefix: ``pages`` full pages, ``tables[g]`` their ids (0 where the group looks at them no more)."""

    pages: int
    tables: Tables


class KVManager:
    """``identity``: names the model and its weights for the prefix cache. ``step``: tokens of one request that may be
    in flight at most; windowed groups hold so many more. ``caching``: publish and look for prefixes."""

    def __init__(self, layout: KVLayout, identity: str = "", dtype: str = "", step: int = 1, caching: bool = True):
        self.layout = layout
        self.page = layout.page
        self.groups = len(layout.groups)
        self.caching = caching
        self.pool = BlockPool(layout.pages, self.groups)
        self.policies = [policy(group.spec, layout.page) for group in layout.groups]
        self._windowed = [g for g, group in enumerate(layout.groups) if group.spec.window is not None]
        #: Groups in the order in which they are asked for a prefix: first those that can say no at once.
        self._asked = sorted(range(self.groups), key=lambda g: not self.policies[g].needs_all)
        self._step = step
        self._identity, self._dtype = identity, dtype
        self._epoch = 0
        self._root = model_root(identity, 0, dtype, self.page)
        self._last: tuple[bytes, bytes, tuple, list[bytes]] = (b"", b"", (), [])

    def new_tables(self) -> Tables:
        return [[] for _ in range(self.groups)]

    def root(self, adapter: AdapterRef | None, salt: bytes) -> bytes:
        """The root of a request's chain."""
        return request_root(self._root, adapter, salt)

    def new_weights(self) -> None:
        """The weights changed: no page computed before can be found from now on."""
        self._epoch += 1
        self._root = model_root(self._identity, self._epoch, self._dtype, self.page)

    def prompt_hashes(
        self, hashes: list[bytes], root: bytes, tokens: bytes, media: tuple[MediaRef, ...], most: int
    ) -> int:
        """Bring a chain on to the full pages of a prompt (int32 bytes), hashing up to ``most`` of them: how many it
        hashed. Requests that arrive together share a prompt: the last whole chain is kept, and taken for nothing."""
        full = len(tokens) // (4 * self.page)
        if len(hashes) == full:
            return 0
        known_root, known_tokens, known_media, known = self._last
        if known_root == root and known_media == media and known_tokens == tokens:
            hashes += known[len(hashes) :]
        before = len(hashes)
        if before < full:
            extend(hashes, root, tokens, self.page, media, most)
            if len(hashes) == full:
                self._last = (root, tokens, media, hashes.copy())
        return len(hashes) - before

    def extend_hashes(self, hashes: list[bytes], root: bytes, tokens: Buffer, media: tuple[MediaRef, ...]) -> None:
        """Bring a chain up to the full pages of ``tokens`` (int32, all from the first one on)."""
        extend(hashes, root, tokens, self.page, media)

    def need(self, length: int) -> int:
        """Pages that a request needs at most, over all groups, to reach ``length`` tokens."""
        return sum(rule.most(length, self._step) for rule in self.policies)

    def match(self, hashes: Sequence[bytes], most: int) -> Match:
        """The longest prefix of at most ``most`` pages that *every* group can continue from.

        A fixed point: each group may shorten the candidate, which may make it useless for another. What full attention
        can serve is downward closed; what a window can serve is not, so the round is repeated until nobody objects.
        """
        most = min(most, len(hashes))
        found: Tables = self.new_tables()
        for group in self._asked:
            rule = self.policies[group]
            pages = found[group] = self._cached(group, hashes, most, rule.needs_all)
            most = rule.longest(pages, len(pages))
        if not most:
            return Match(0, self.new_tables())
        agreed = False
        while not agreed and most:
            agreed = True
            for pages, rule in zip(found, self.policies, strict=True):
                length = rule.longest(pages, most)
                if length < most:
                    most, agreed = length, False
        tables = []
        for pages, rule in zip(found, self.policies, strict=True):
            first = rule.first(most * self.page)
            tables.append([0] * first + pages[first:most])
        return Match(most, tables)

    def _cached(self, group: int, hashes: Sequence[bytes], most: int, needs_all: bool) -> list[int]:
        """Cached pages of the first ``most`` of a chain, 0 where there is none; with ``needs_all`` up to the first that
        is missing: who waits is looked up in every step."""
        pages = []
        for index in range(most):
            page = self.pool.find(group, hashes[index])
            if needs_all and not page:
                break
            pages.append(page)
        return pages

    def idle_pages(self, match: Match) -> int:
        """How many of a match's pages are free now, and so will be taken from the free ones by ``claim``."""
        refs = self.pool.refs
        return sum(1 for table in match.tables for page in table if page and refs[page] == 0)

    def claim(self, tables: Tables, match: Match) -> None:
        """Hold a match for a request without pages. All groups are held before anybody takes a page: what one group
        takes could otherwise be what another has found."""
        for table, pages in zip(tables, match.tables, strict=True):
            assert not table
            self.pool.hold(pages)
            table.extend(pages)

    def missing(self, tables: Tables, length: int) -> int:
        """Pages to take before ``length`` tokens fit."""
        return max(0, cdiv(length, self.page) - len(tables[0])) * self.groups

    def grow(self, tables: Tables, count: int) -> list[list[int]]:
        """``count`` more pages in every group, appended to the tables. The caller has checked that they are free."""
        taken = []
        for table in tables:
            pages = self.pool.take(count)
            table.extend(pages)
            taken.append(pages)
        return taken

    def publish(self, tables: Tables, hashes: Sequence[bytes], start: int, stop: int) -> None:
        """Pages ``start <= i < stop`` are computed to their end: others may find them."""
        for index in range(start, stop):
            for group, table in enumerate(tables):
                self.pool.publish(table[index], group, hashes[index])

    def leave(self, tables: Tables, computed: int) -> None:
        """Give back what has left the windows, now that ``computed`` tokens are certain."""
        for group in self._windowed:
            table = tables[group]
            index = min(self.policies[group].first(computed), len(table)) - 1
            gone = []
            while index >= 0 and table[index]:
                gone.append(table[index])
                table[index] = 0
                index -= 1
            self.pool.drop(gone)

    def release(self, tables: Tables) -> None:
        """Give everything back, tails first."""
        for table in tables:
            self.pool.drop(reversed(table))
            table.clear()

    def held(self, tables: Tables) -> int:
        """Pages that these tables hold."""
        return sum(len(table) - table.count(0) for table in tables)
