"""RequestState: what the device knows of each row."""

import numpy as np
import torch
from torch import Tensor

from octavo.device.batch.buffers import HostMirror, StagedTensor, flush
from octavo.wire.plan import NewRow

#: Stop ids that a row can hold: those a request may name, and the model's own ends of sequence.
MAX_STOPS = 160


class RequestState:
    """Rows [R + 1]: one a request, and a last one that padding writes to.

    The device's own truth: ``computed`` int64, ``last`` int64 (the token to feed next), ``alive`` bool, and ``history``
    int32 [R + 1, L] of rows that a sampling stage wants it for. The host's: ``limit``, ``min_len``, ``prompt``
    int32, ``stops`` int32 [R + 1, MAX_STOPS] (-1 where unused), ``keeps`` bool (history is kept).
    """

    def __init__(self, rows: int, length: int, device: torch.device):
        self.rows = rows
        self.length = length
        self.computed = StagedTensor((rows + 1,), np.int64, device)
        self.last = StagedTensor((rows + 1,), np.int64, device)
        self.alive = StagedTensor((rows + 1,), np.bool_, device)
        self.limit = HostMirror((rows + 1,), np.int32, device)
        self.min_len = HostMirror((rows + 1,), np.int32, device)
        self.stops = HostMirror((rows + 1, MAX_STOPS), np.int32, device, fill=-1)
        self.prompt = np.zeros(rows + 1, np.int32)
        self.keeps = np.zeros(rows + 1, np.bool_)
        self.widest_stops = 1
        self._device = device
        self._history: StagedTensor | None = None

    @property
    def history(self) -> Tensor:
        """int32[R + 1, L]; made when the first row asks for it."""
        return self._need_history().tensor

    def add(self, new: NewRow) -> None:
        row = new.row
        assert 0 <= row < self.rows, f"row {row} of {self.rows}"
        assert len(new.stops) <= MAX_STOPS, f"{len(new.stops)} stop ids"
        self.computed.stage(row, 0)
        self.last.stage(row, 0)
        self.alive.stage(row, True)
        self.limit.edit(row)[row] = new.limit
        self.min_len.edit(row)[row] = new.min_length
        stops = self.stops.edit(row)[row]
        stops[:] = -1
        stops[: len(new.stops)] = new.stops
        self.widest_stops = max(self.widest_stops, len(new.stops))
        self.prompt[row] = new.prompt
        self.keeps[row] = new.sampling.needs_history
        if self.keeps[row]:
            self._need_history().stage(row, np.frombuffer(new.tokens, "<i4"))

    def kill(self, rows: np.ndarray) -> None:
        """Their requests ended early: they say nothing more."""
        for row in rows.tolist():
            self.alive.stage(row, False)

    def flush(self, *more: StagedTensor) -> None:
        """What was staged, to the device, and what was in ``more``."""
        kept = () if self._history is None else (self._history,)
        flush((self.computed, self.last, self.alive, *kept, *more))
        for mirror in (self.limit, self.min_len, self.stops):
            mirror.flush()

    def _need_history(self) -> StagedTensor:
        if self._history is None:
            self._history = StagedTensor((self.rows + 1, self.length), np.int32, self._device, lazy=True)
        return self._history
