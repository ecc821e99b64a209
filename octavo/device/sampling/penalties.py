"""The stage of repetition, frequency and presence penalties, and the counts it keeps."""

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from octavo.device.batch.buffers import HostMirror, shared, ship
from octavo.device.kernels.penalties import count, penalise, penalise_seen
from octavo.device.sampling.stage import Drawing, Rows
from octavo.wire.plan import NewRow


class Penalties:
    """``factors``: repetition, frequency and presence, a column each."""

    def __init__(self, rows: Rows):
        self._on = np.zeros(rows.count, np.bool_)
        self._factors = [HostMirror((rows.count,), np.float32, rows.device) for _ in range(3)]
        self._seen: Seen = Lists(rows) if shared(rows.device) else Counts(rows)

    def add(self, new: NewRow) -> None:
        asked = new.sampling
        factors = asked.repetition_penalty, asked.frequency_penalty, asked.presence_penalty
        self._on[new.row] = on = factors != (1.0, 0.0, 0.0)
        if not on:
            self._seen.forget(new.row)
            return
        for column, factor in zip(self._factors, factors, strict=True):
            column.edit()[new.row] = factor
        tokens = np.frombuffer(new.tokens, "<i4")
        self._seen.begin(new.row, tokens[: new.prompt], tokens[new.prompt :])

    def active(self, drawing: Drawing) -> np.ndarray:
        return self._on[drawing.rows]

    def apply(self, logits: Tensor, drawing: Drawing) -> None:
        factors = [column.flush()[drawing.device_rows] for column in self._factors]
        self._seen.penalise(logits, drawing, factors)

    def commit(self, drawing: Drawing, tokens: Tensor, good: Tensor) -> None:
        """Count what active rows said: tokens int64[N], those that are ``good``."""
        self._seen.count(drawing, tokens, good)


class Seen(Protocol):
    """What active rows have in their prompts and have said."""

    def begin(self, row: int, prompt: np.ndarray, said: np.ndarray) -> None:
        """A request enters a row, with its tokens so far."""

    def forget(self, row: int) -> None:
        """The row has no use for what is known of it."""

    def penalise(self, logits: Tensor, drawing: Drawing, factors: list[Tensor]) -> None: ...

    def count(self, drawing: Drawing, tokens: Tensor, good: Tensor) -> None: ...


class Counts:
    """Tensors [R + 1, V] on the device, from the first request on that asks for a penalty. Only tokens travel."""

    def __init__(self, rows: Rows):
        self._rows = rows
        self._prompted: Tensor | None = None
        self._counts: Tensor | None = None

    def begin(self, row: int, prompt: np.ndarray, said: np.ndarray) -> None:
        device = self._rows.device
        if self._prompted is None or self._counts is None:
            shape = self._rows.count, self._rows.vocab
            self._prompted = torch.zeros(shape, dtype=torch.bool, device=device)
            self._counts = torch.zeros(shape, dtype=torch.int32, device=device)
        tokens = ship(np.concatenate((prompt, said)).astype(np.int64), device)
        self._prompted[row].zero_().index_fill_(0, tokens[: len(prompt)], True)
        once = torch.ones(len(said), dtype=torch.int32, device=device)
        self._counts[row].zero_().index_add_(0, tokens[len(prompt) :], once)

    def forget(self, row: int) -> None:
        pass  # rows that are not active are not read

    def penalise(self, logits: Tensor, drawing: Drawing, factors: list[Tensor]) -> None:
        assert self._prompted is not None
        assert self._counts is not None
        penalise(logits, drawing.device_rows, self._prompted, self._counts, *factors, drafts=self._drafts(drawing))

    def _drafts(self, drawing: Drawing) -> Tensor | None:
        """Of each row the drafts that count as said, int64[N, W], -1 behind the last; None where there are none."""
        if drawing.ahead is None or not drawing.ahead.any():
            return None
        ahead = ship(drawing.ahead.astype(np.int64), self._rows.device).unsqueeze(1)
        behind = torch.arange(int(drawing.ahead.max()), device=self._rows.device)
        at = (drawing.device_lens.unsqueeze(1) - ahead + behind).clamp(max=self._rows.state.length - 1)
        said = self._rows.state.history[drawing.device_rows.unsqueeze(1), at].long()
        return said.masked_fill_(behind >= ahead, -1)

    def count(self, drawing: Drawing, tokens: Tensor, good: Tensor) -> None:
        assert self._counts is not None
        count(self._counts, drawing.device_rows, tokens, good, again=drawing.ahead is not None)


class Lists:
    """A list a row, where the host and the device have one memory: a request has seen few of the vocabulary's tokens,
    and only those are read and written."""

    def __init__(self, rows: Rows) -> None:
        self._state = rows.state
        self._rows: dict[int, SeenTokens] = {}

    def begin(self, row: int, prompt: np.ndarray, said: np.ndarray) -> None:
        self._rows[row] = SeenTokens(prompt, said)

    def forget(self, row: int) -> None:
        self._rows.pop(row, None)

    def penalise(self, logits: Tensor, drawing: Drawing, factors: list[Tensor]) -> None:
        if drawing.ahead is None:
            seen = [self._rows[row].all for row in drawing.rows.tolist()]
        else:
            history = self._state.history.numpy()
            each = zip(drawing.rows.tolist(), drawing.lens.tolist(), drawing.ahead.tolist(), strict=True)
            seen = [self._rows[row].all_behind(history[row, length - ahead : length]) for row, length, ahead in each]
        index = np.repeat(np.arange(len(seen)), [len(ids) for ids, _ in seen])
        ids = np.concatenate([ids for ids, _ in seen])
        said = np.concatenate([said for _, said in seen])
        penalise_seen(logits, torch.from_numpy(index), torch.from_numpy(ids), torch.from_numpy(said), *factors)

    def count(self, drawing: Drawing, tokens: Tensor, good: Tensor) -> None:
        for row, token, sound in zip(drawing.rows.tolist(), tokens.tolist(), good.tolist(), strict=True):
            if sound:
                self._rows[row].say(token)


class SeenTokens:
    """Of one request: ``ids`` int64 of the ``size`` tokens that it has seen, each once, those of the prompt first and
    sorted; ``said`` int32: how often it has said each itself."""

    def __init__(self, prompt: np.ndarray, said: np.ndarray):
        ids = np.unique(prompt).astype(np.int64)
        self._prompt = len(ids)
        self.size = self._prompt
        self.ids: np.ndarray = np.resize(ids, self.size + 64)
        self.said: np.ndarray = np.zeros(self.size + 64, np.int32)
        self._place: dict[int, int] = {}  # of tokens that the prompt has not
        for token, times in zip(*(part.tolist() for part in np.unique(said, return_counts=True)), strict=True):
            self.say(token, times)

    @property
    def all(self) -> tuple[np.ndarray, np.ndarray]:
        """The ids, and how often each was said."""
        return self.ids[: self.size], self.said[: self.size]

    def all_behind(self, drafts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same as if these were said, which are not."""
        if not len(drafts):
            return self.all
        ids, said = self.all
        said = said.copy()
        fresh: dict[int, int] = {}
        for token in drafts.tolist():
            at = self._find(token)
            if at is None:
                fresh[token] = fresh.get(token, 0) + 1
            else:
                said[at] += 1
        return np.append(ids, list(fresh)).astype(np.int64), np.append(said, list(fresh.values())).astype(np.int32)

    def _find(self, token: int) -> int | None:
        at = int(self.ids[: self._prompt].searchsorted(token))
        return at if at < self._prompt and self.ids[at] == token else self._place.get(token)

    def say(self, token: int, times: int = 1) -> None:
        at = self._find(token)
        if at is None:
            at = self._place[token] = self.size
        if at == self.size:
            if at == len(self.ids):
                self.ids = np.concatenate((self.ids, np.zeros_like(self.ids)))
                self.said = np.concatenate((self.said, np.zeros_like(self.said)))
            self.ids[at] = token
            self.size += 1
        self.said[at] += times
