"""Replies: what a step has to say, gathered a client, sent as columns."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from octavo.wire.arrays import Ints, ints
from octavo.wire.reply import Admitted, Refused, RequestDelta, StepReply
from octavo.wire.stats import StepStats


@dataclass(slots=True)
class _Box:
    handles: list[Ints] = field(default_factory=list)
    counts: list[Ints] = field(default_factory=list)
    tokens: list[Ints] = field(default_factory=list)
    deltas: list[RequestDelta] = field(default_factory=list)
    answers: list[Admitted | Refused] = field(default_factory=list)


def _joined(pieces: list[Ints]) -> Ints:
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces) if pieces else ints([])


class Replies:
    """Gathers between two ``flush``es; true where there is something to flush."""

    def __init__(self) -> None:
        self._boxes: dict[int, _Box] = {}
        self._stats: StepStats | None = None

    def __bool__(self) -> bool:
        return bool(self._boxes)

    def _box(self, client: int) -> _Box:
        box = self._boxes.get(client)
        if box is None:
            box = self._boxes[client] = _Box()
        return box

    def answer(self, client: int, answer: Admitted | Refused) -> None:
        self._box(client).answers.append(answer)

    def delta(self, client: int, delta: RequestDelta) -> None:
        self._box(client).deltas.append(delta)

    def tokens(self, client: Ints, handles: Ints, counts: Ints, tokens: Ints) -> None:
        """New tokens of requests of any clients: ``counts[i]`` of ``tokens`` belong to ``handles[i]``."""
        first = int(client[0])
        if (client == first).all():
            self.tokens_of(first, handles, counts, tokens)
            return
        owner = np.repeat(client, counts)
        for one in np.unique(client).tolist():
            mine = client == one
            self.tokens_of(one, handles[mine], counts[mine], tokens[owner == one])

    def tokens_of(self, client: int, handles: Ints, counts: Ints, tokens: Ints) -> None:
        """``tokens`` where all requests are of one client."""
        box = self._box(client)
        box.handles.append(handles)
        box.counts.append(counts)
        box.tokens.append(tokens)

    def stats(self, stats: StepStats, clients: Iterable[int]) -> None:
        """Goes to these clients, and to everybody who hears something at the next flush."""
        self._stats = stats
        for client in clients:
            self._box(client)

    def flush(self) -> list[StepReply]:
        if not self._boxes:
            return []
        boxes, self._boxes = self._boxes, {}
        stats, self._stats = self._stats, None
        return [
            StepReply(client, _joined(b.handles), _joined(b.counts), _joined(b.tokens), b.deltas, b.answers, stats)
            for client, b in boxes.items()
        ]
