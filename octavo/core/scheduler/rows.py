"""Rows: the numbers that plans speak in, lent to requests as file descriptors are."""

from collections import deque

from octavo.wire.arrays import Ints


class Rows:
    """A row that is given back rests until every launched step that names it has retired: then no answer for its old
    owner can be taken for one of the new. ``uses`` is the column that counts those steps."""

    def __init__(self, count: int, uses: Ints):
        self._free = deque(range(count))
        self._resting: set[int] = set()
        self._uses = uses

    @property
    def available(self) -> int:
        return len(self._free)

    def take(self) -> int:
        return self._free.popleft()

    def give(self, row: int) -> None:
        if self._uses[row]:
            self._resting.add(row)
        else:
            self._free.append(row)

    def wake(self) -> None:
        """A step retired: let rows go that nobody names any more."""
        if self._resting:
            awake = [row for row in self._resting if not self._uses[row]]
            self._resting.difference_update(awake)
            self._free.extend(awake)
