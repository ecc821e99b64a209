"""Stage: one step from logits to tokens. A stage that no row of the step uses costs nothing."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from octavo.device.batch.buffers import ship
from octavo.device.batch.state import RequestState
from octavo.wire.plan import NewRow


@dataclass(frozen=True, eq=False, slots=True)
class Drawing:
    """The logit rows of one call: persistent ``rows`` (host int32[N] and device int64[N]) and their lengths before the
    draw, which are the positions of the tokens to come. ``ahead`` int32[N]: how many of those tokens are drafts that
    are not said yet (None: none); rows that keep a history have them there."""

    rows: np.ndarray
    lens: np.ndarray
    device_rows: Tensor
    device_lens: Tensor
    ahead: np.ndarray | None = None

    def take(self, at: np.ndarray) -> "Drawing":
        """Only the logit rows ``at``."""
        picked = ship(at, self.device_rows.device)
        ahead = None if self.ahead is None else self.ahead[at]
        return Drawing(self.rows[at], self.lens[at], self.device_rows[picked], self.device_lens[picked], ahead)


class Stage(Protocol):
    """Changes logits in place."""

    def add(self, new: NewRow) -> None:
        """A request enters a row; whatever the row was before is forgotten."""

    def active(self, drawing: Drawing) -> np.ndarray:
        """bool[N]: the logit rows that it changes."""

    def apply(self, logits: Tensor, drawing: Drawing) -> None:
        """float32 logits [N, V] of rows that are all active. Each row's result depends on that row alone."""


class Rows:
    """What stages are made with: the size of things, and the requests' state."""

    def __init__(self, state: RequestState, vocab: int, device: torch.device):
        self.state = state
        self.count = state.rows + 1
        self.vocab = vocab
        self.device = device
