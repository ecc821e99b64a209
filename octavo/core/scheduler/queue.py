"""WaitQueue: requests without a row, best rank first."""

import heapq

from octavo.core.scheduler.request import Request, State


class WaitQueue:
    """A heap by rank. First come, first served is the same queue with arrival as the rank.

    Requests that ended while waiting stay in the heap until they surface, or until they are more than half of it.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple, Request]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def push(self, request: Request) -> None:
        request.state = State.WAITING
        heapq.heappush(self._heap, (request.rank, request))
        self._count += 1

    def head(self) -> Request | None:
        """The next one, left in place."""
        while self._heap and self._heap[0][1].state is not State.WAITING:
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def pop(self) -> Request:
        """Take out what ``head`` gave."""
        self._count -= 1
        return heapq.heappop(self._heap)[1]

    def forget(self, request: Request) -> None:
        """``request`` ended while it waited."""
        assert request.state is not State.WAITING
        self._count -= 1
        if len(self._heap) > 64 and self._count < len(self._heap) // 2:
            self._heap = [item for item in self._heap if item[1].state is State.WAITING]
            heapq.heapify(self._heap)
