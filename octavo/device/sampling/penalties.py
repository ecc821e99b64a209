"""The stage of repetition, frequency and presence penalties, and the counts it keeps."""

import numpy as np
from torch import Tensor

from octavo.device.batch.buffers import HostMirror, StagedTensor
from octavo.device.kernels.penalties import count, penalise
from octavo.device.sampling.stage import Drawing, Rows
from octavo.wire.plan import NewRow


class Penalties:
    """Counts [R + 1, V] exist from the first request on that asks for a penalty."""

    def __init__(self, rows: Rows):
        self._on = np.zeros(rows.count, np.bool_)
        self._rows = rows
        self._factors = [HostMirror((rows.count,), np.float32, rows.device) for _ in range(3)]
        self._prompted: StagedTensor | None = None
        self._counts: StagedTensor | None = None

    def add(self, new: NewRow) -> None:
        asked = new.sampling
        factors = asked.repetition_penalty, asked.frequency_penalty, asked.presence_penalty
        self._on[new.row] = on = factors != (1.0, 0.0, 0.0)
        if not on:
            return
        for column, factor in zip(self._factors, factors, strict=True):
            column.edit()[new.row] = factor
        if self._prompted is None or self._counts is None:
            shape = self._rows.count, self._rows.vocab
            self._prompted = StagedTensor(shape, np.bool_, self._rows.device, lazy=True)
            self._counts = StagedTensor(shape, np.int32, self._rows.device, lazy=True)
        tokens = np.frombuffer(new.tokens, "<i4")
        prompted = np.zeros(self._rows.vocab, np.bool_)
        prompted[tokens[: new.prompt]] = True
        self._prompted.stage(new.row, prompted)
        self._counts.stage(new.row, np.bincount(tokens[new.prompt :], minlength=self._rows.vocab))

    def active(self, drawing: Drawing) -> np.ndarray:
        return self._on[drawing.rows]

    def apply(self, logits: Tensor, drawing: Drawing) -> None:
        assert self._prompted is not None
        assert self._counts is not None
        self._prompted.flush()
        self._counts.flush()
        factors = [column.flush()[drawing.device_rows] for column in self._factors]
        penalise(logits, drawing.device_rows, self._prompted.tensor, self._counts.tensor, *factors)

    def commit(self, drawing: Drawing, tokens: Tensor, good: Tensor) -> None:
        """Count what active rows said."""
        assert self._counts is not None
        self._counts.flush()
        count(self._counts.tensor, drawing.device_rows, tokens, good)
