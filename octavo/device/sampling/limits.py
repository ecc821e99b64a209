"""Stages that say which tokens may be at all: allowed ids, logit bias, minimum length, bad words."""

import numpy as np
import torch
from torch import Tensor

from octavo.common.math import cdiv, next_power_of_two
from octavo.device.batch.buffers import HostMirror, ship
from octavo.device.kernels.mask import add_bias, apply_bits, bad_ends, forbid
from octavo.device.sampling.stage import Drawing, Rows
from octavo.wire.plan import NewRow


class Allowed:
    """Only the ids that the request names."""

    def __init__(self, rows: Rows):
        self._on = np.zeros(rows.count, np.bool_)
        self._rows = rows
        self._bits: HostMirror | None = None

    def add(self, new: NewRow) -> None:
        allowed = new.sampling.allowed
        self._on[new.row] = bool(allowed)
        if allowed:
            if self._bits is None:
                self._bits = HostMirror((self._rows.count, cdiv(self._rows.vocab, 32)), np.int32, self._rows.device)
            may = np.zeros(self._bits.host.shape[1] * 32, np.uint8)
            may[np.frombuffer(allowed, "<i4")] = 1
            self._bits.edit()[new.row] = np.packbits(may, bitorder="little").view("<i4")

    def active(self, drawing: Drawing) -> np.ndarray:
        return self._on[drawing.rows]

    def apply(self, logits: Tensor, drawing: Drawing) -> None:
        assert self._bits is not None
        apply_bits(logits, self._bits.flush()[drawing.device_rows])


class Bias:
    """A number added to the logits of some ids."""

    def __init__(self, rows: Rows):
        self._on = np.zeros(rows.count, np.bool_)
        self._rows = rows
        self._ids = HostMirror((rows.count, 0), np.int32, rows.device)
        self._values = HostMirror((rows.count, 0), np.float32, rows.device)

    def add(self, new: NewRow) -> None:
        ids = np.frombuffer(new.sampling.bias_ids, "<i4")
        self._on[new.row] = len(ids) > 0
        if len(ids):
            if len(ids) > self._ids.host.shape[1]:
                self._ids = _wider(self._ids, len(ids), -1, self._rows.device)
                self._values = _wider(self._values, len(ids), 0, self._rows.device)
            mine = self._ids.edit()[new.row]
            mine[:] = -1
            mine[: len(ids)] = ids
            self._values.edit()[new.row, : len(ids)] = np.frombuffer(new.sampling.bias_values, "<f4")

    def active(self, drawing: Drawing) -> np.ndarray:
        return self._on[drawing.rows]

    def apply(self, logits: Tensor, drawing: Drawing) -> None:
        add_bias(logits, self._ids.flush()[drawing.device_rows], self._values.flush()[drawing.device_rows])


class MinTokens:
    """No stop id before the request is as long as it must be."""

    def __init__(self, rows: Rows):
        self._state = rows.state

    def add(self, new: NewRow) -> None:
        pass  # the request's state has all that is needed

    def active(self, drawing: Drawing) -> np.ndarray:
        return drawing.lens < self._state.min_len.host[drawing.rows]

    def apply(self, logits: Tensor, drawing: Drawing) -> None:
        forbid(logits, self._state.stops.device[drawing.device_rows, : self._state.widest_stops])


class BadWords:
    """No token that would complete one of the request's bad words in the answer; the prompt is not looked at."""

    def __init__(self, rows: Rows):
        self._on = np.zeros(rows.count, np.bool_)
        self._rows = rows
        self._words = HostMirror((rows.count, 1, 1), np.int32, rows.device, fill=-1)

    def add(self, new: NewRow) -> None:
        words = new.sampling.bad_words
        self._on[new.row] = bool(words)
        if not words:
            return
        _, most, longest = self._words.host.shape
        need = len(words), max(map(len, words))
        if need[0] > most or need[1] > longest:
            most, longest = (next_power_of_two(max(pair)) for pair in zip(need, (most, longest), strict=True))
            old = self._words.host
            self._words = HostMirror((self._rows.count, most, longest), np.int32, self._rows.device, fill=-1)
            self._words.edit()[:, : old.shape[1], longest - old.shape[2] :] = old
        mine = self._words.edit()[new.row]
        mine[:] = -1
        for nth, word in enumerate(words):
            mine[nth, longest - len(word) :] = word

    def active(self, drawing: Drawing) -> np.ndarray:
        return self._on[drawing.rows]

    def apply(self, logits: Tensor, drawing: Drawing) -> None:
        words = self._words.flush()[drawing.device_rows]
        back = torch.arange(1 - words.shape[2], 0, device=logits.device)
        at = drawing.device_lens.unsqueeze(1) + back
        state = self._rows.state
        first = ship(state.prompt[drawing.rows], logits.device).unsqueeze(1)
        recent = state.history[drawing.device_rows.unsqueeze(1), at.clamp(min=0)].masked_fill(at < first, -2)
        forbid(logits, bad_ends(words, recent))


def _wider(mirror: HostMirror, width: int, fill: int, device: torch.device) -> HostMirror:
    """A copy with room for ``width`` columns at least."""
    rows, old = mirror.host.shape
    grown = HostMirror((rows, next_power_of_two(width)), mirror.host.dtype.type, device, fill=fill)
    grown.edit()[:, :old] = mirror.host
    return grown
