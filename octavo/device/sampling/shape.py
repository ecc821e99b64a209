"""Stages that shape the distribution: temperature, min-p, top-k and top-p."""

import numpy as np
from torch import Tensor

from octavo.device.batch.buffers import HostMirror
from octavo.device.kernels.truncate import min_p, top_k_p
from octavo.device.sampling.stage import Drawing, Rows
from octavo.wire.plan import NewRow


class Temperature:
    """Logits divided by the temperature. Rows with temperature 0 are greedy and pass."""

    def __init__(self, rows: Rows):
        self.column = HostMirror((rows.count,), np.float32, rows.device)

    def add(self, new: NewRow) -> None:
        self.column.edit()[new.row] = new.sampling.temperature

    def active(self, drawing: Drawing) -> np.ndarray:
        heat = self.column.host[drawing.rows]
        return (heat != 0) & (heat != 1)

    def apply(self, logits: Tensor, drawing: Drawing) -> None:
        logits.div_(self.column.flush()[drawing.device_rows].unsqueeze(1))


class MinP:
    """Tokens that are unlikely beside the best one go."""

    def __init__(self, rows: Rows):
        self.least = HostMirror((rows.count,), np.float32, rows.device)

    def add(self, new: NewRow) -> None:
        self.least.edit()[new.row] = new.sampling.min_p

    def active(self, drawing: Drawing) -> np.ndarray:
        return self.least.host[drawing.rows] > 0

    def apply(self, logits: Tensor, drawing: Drawing) -> None:
        min_p(logits, self.least.flush()[drawing.device_rows])


class TopKP:
    """The k most likely tokens, and of them those that make up p of the probability."""

    def __init__(self, rows: Rows):
        self._vocab = rows.vocab
        self.k = HostMirror((rows.count,), np.int32, rows.device)
        self.p = HostMirror((rows.count,), np.float32, rows.device, fill=1)

    def add(self, new: NewRow) -> None:
        self.k.edit()[new.row] = new.sampling.top_k if new.sampling.top_k < self._vocab else 0
        self.p.edit()[new.row] = new.sampling.top_p

    def active(self, drawing: Drawing) -> np.ndarray:
        return (self.k.host[drawing.rows] > 0) | (self.p.host[drawing.rows] < 1)

    def apply(self, logits: Tensor, drawing: Drawing) -> None:
        top_k_p(logits, self.k.flush()[drawing.device_rows], self.p.flush()[drawing.device_rows])
