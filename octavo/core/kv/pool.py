"""BlockPool: pages, their owners' count, what they hold, and the order in which they are given out again."""

from collections.abc import Iterable


class BlockPool:
    """Pages 1 .. pages - 1; page 0 is the null page, never lent and never counted.

    A page is *held* (``refs > 0``) or *free*. A free page may still be *cached*: it has a hash and can be held again by
    whoever needs the same content. Free pages stand in one intrusive list, next victim first: pages without content at
    its head, cached ones behind, least recently used first. All methods are O(1) a page.
    """

    def __init__(self, pages: int, groups: int):
        assert pages > 1
        assert groups > 0
        self.pages = pages
        self.free = pages - 1
        self.refs = [0] * pages
        self._hash: list[bytes | None] = [None] * pages
        self._group = [0] * pages
        self._cached: list[dict[bytes, int]] = [{} for _ in range(groups)]
        # The list is circular through the null page: next[0] is the head, prev[0] the tail.
        self._next = [*range(1, pages), 0]
        self._prev = [pages - 1, *range(pages - 1)]

    @property
    def usage(self) -> float:
        """The part of the pages that is held, 0 to 1."""
        return 1.0 - self.free / (self.pages - 1)

    @property
    def cached(self) -> int:
        """How many pages have content that can be found again."""
        return sum(map(len, self._cached))

    def find(self, group: int, key: bytes) -> int:
        """The page of that content, 0 if there is none."""
        return self._cached[group].get(key, 0)

    def take(self, count: int) -> list[int]:
        """``count`` pages for one owner; what they held is forgotten. The caller has checked ``free``."""
        assert count <= self.free, "the pool was asked for more pages than are free"
        taken = []
        following, refs = self._next, self.refs
        page = following[0]
        for _ in range(count):
            taken.append(page)
            refs[page] = 1
            if self._hash[page] is not None:
                self._forget(page)
            page = following[page]
        following[0] = page
        self._prev[page] = 0
        self.free -= count
        return taken

    def hold(self, pages: Iterable[int]) -> None:
        """One more owner for cached pages; null pages are skipped."""
        for page in pages:
            if page:
                if self.refs[page] == 0:
                    self._unlink(page)
                    self.free -= 1
                self.refs[page] += 1

    def drop(self, pages: Iterable[int]) -> None:
        """One owner less. Of pages dropped together the first becomes a victim first: give the tail of a chain first,
        since a prefix without its tail is useful and a tail without its prefix is not. Null pages are skipped."""
        for page in pages:
            if page:
                assert self.refs[page] > 0, f"page {page} was given back twice"
                self.refs[page] -= 1
                if self.refs[page] == 0:
                    self.free += 1
                    if self._hash[page] is None:
                        self._link(page, 0, self._next[0])
                    else:
                        self._link(page, self._prev[0], 0)

    def publish(self, page: int, group: int, key: bytes) -> None:
        """Say what a full page holds. The first page of a content keeps the name: tables never change."""
        if page and self._hash[page] is None:
            first = self._cached[group].setdefault(key, page)
            if first == page:
                self._hash[page] = key
                self._group[page] = group

    def reset(self) -> int:
        """Forget all content; held pages stay with their owners. Returns how many pages were forgotten."""
        count = self.cached
        for page, key in enumerate(self._hash):
            if key is not None:
                self._forget(page)
        return count

    def check(self, tables: Iterable[Iterable[int]]) -> None:
        """Assert that the ledger balances against the page tables of all owners (for tests; O(pages))."""
        count = [0] * self.pages
        for table in tables:
            for page in table:
                count[page] += 1
        count[0] = 0
        assert count == self.refs, "reference counts differ from the tables"
        walked, page = 0, self._next[0]
        while page:
            assert self.refs[page] == 0
            assert self._prev[self._next[page]] == page
            walked += 1
            page = self._next[page]
        assert walked == self.free == self.refs[1:].count(0)
        for group, cached in enumerate(self._cached):
            for key, page in cached.items():
                assert self._hash[page] == key
                assert self._group[page] == group
        assert self.cached == sum(key is not None for key in self._hash)

    def _forget(self, page: int) -> None:
        key = self._hash[page]
        assert key is not None
        del self._cached[self._group[page]][key]
        self._hash[page] = None

    def _unlink(self, page: int) -> None:
        before, behind = self._prev[page], self._next[page]
        self._next[before] = behind
        self._prev[behind] = before

    def _link(self, page: int, before: int, behind: int) -> None:
        self._prev[page], self._next[page] = before, behind
        self._next[before] = page
        self._prev[behind] = page
