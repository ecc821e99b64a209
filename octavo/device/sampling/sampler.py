"""Sampler: logits to tokens, through stages in a fixed order.

grammar mask, allowed ids, logit bias, minimum length, penalties, bad words, temperature, min-p, top-k and top-p, draw.
Raw log-probabilities are those behind the grammar mask. A row's token depends on its logits, its own request and
(seed, position), never on its neighbours.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from octavo.device.batch.buffers import HostMirror
from octavo.device.batch.state import RequestState
from octavo.device.kernels.draw import draw, draw_among, keys, pick
from octavo.device.kernels.mask import apply_bits
from octavo.device.kernels.truncate import left
from octavo.device.sampling.limits import Allowed, BadWords, Bias, MinTokens
from octavo.device.sampling.logprobs import LogprobsMode, report
from octavo.device.sampling.penalties import Penalties
from octavo.device.sampling.shape import MinP, Temperature, TopKP
from octavo.device.sampling.stage import Drawing, Rows, Stage
from octavo.wire.arrays import Ints
from octavo.wire.plan import NewRow
from octavo.wire.result import LogprobArrays


@dataclass(frozen=True, eq=False, slots=True)
class Sampled:
    """tokens int64[N]; good bool[N]: whether the row's logits were sound; faults: why not, by logit row; ``asked``
    int[A]: logit rows with log-probabilities, and theirs."""

    tokens: Tensor
    good: Tensor
    faults: dict[int, str]
    asked: np.ndarray
    logprobs: LogprobArrays | None


class Sampler:
    """Keeps what requests ask of sampling, by row, and draws."""

    def __init__(self, state: RequestState, vocab: int, device: torch.device, mode: LogprobsMode = "raw_logprobs"):
        rows = Rows(state, vocab, device)
        self.vocab = vocab
        self._state = state
        self._raw = mode.startswith("raw")
        self._normal = mode.endswith("logprobs")
        self._seeds = HostMirror((rows.count,), np.int64, device)
        self._wants = np.zeros(rows.count, np.bool_)
        self._width = np.zeros(rows.count, np.int32)
        self._named: dict[int, np.ndarray] = {}
        self._temperature = Temperature(rows)
        self._cut = MinP(rows), TopKP(rows)
        self._penalties = Penalties(rows)
        self._stages: tuple[Stage, ...] = (
            Allowed(rows),
            Bias(rows),
            MinTokens(rows),
            self._penalties,
            BadWords(rows),
            self._temperature,
            *self._cut,
        )

    def add(self, new: NewRow) -> None:
        row, asked = new.row, new.sampling
        self._seeds.edit()[row] = (asked.seed + 2**63) % 2**64 - 2**63
        self._wants[row] = asked.logprobs is not None or bool(asked.logprob_ids)
        self._width[row] = asked.logprobs or 0
        self._named.pop(row, None)
        if asked.logprob_ids:
            self._named[row] = np.frombuffer(asked.logprob_ids, "<i4")
        for stage in self._stages:
            stage.add(new)

    def sample(
        self, logits: Tensor, drawing: Drawing, masked: np.ndarray | None = None, bits: Ints | None = None
    ) -> Sampled:
        """float32 logits [N, V], which are used up. ``masked`` int[M]: logit rows with a grammar mask, ``bits``
        int32[M, ceil(V / 32)] theirs."""
        if masked is not None and len(masked) and bits is not None:
            self._mask(logits, masked, bits)
        asked = np.flatnonzero(self._wants[drawing.rows])
        raw = self._rows_of(logits, asked).clone() if len(asked) and self._raw else None
        for stage in self._stages:
            self._run(stage, logits, drawing)
        tokens, scores = self._draw(logits, drawing)
        good = scores.isfinite()
        faults = {} if bool(good.all()) else self._explain(scores, good)
        on = self._penalties.active(drawing)
        if on.any():
            at = np.flatnonzero(on)
            picked = torch.from_numpy(at).to(logits.device)
            self._penalties.commit(drawing.take(at), tokens[picked], good[picked])
        logprobs = None
        if len(asked):
            source = self._rows_of(logits, asked) if raw is None else raw
            logprobs = self._report(source, tokens, asked, drawing.rows[asked])
        return Sampled(tokens, good, faults, asked, logprobs)

    def _mask(self, logits: Tensor, masked: np.ndarray, bits: Ints) -> None:
        part = self._rows_of(logits, masked)
        apply_bits(part, torch.from_numpy(np.array(bits, np.int32)).to(logits.device))
        if part is not logits:
            logits[torch.from_numpy(masked).to(logits.device)] = part

    def _run(self, stage: Stage, logits: Tensor, drawing: Drawing) -> None:
        on = stage.active(drawing)
        if on.all():
            stage.apply(logits, drawing)
        elif on.any():
            at = np.flatnonzero(on)
            part = self._rows_of(logits, at)
            stage.apply(part, drawing.take(at))
            logits[torch.from_numpy(at).to(logits.device)] = part

    def _draw(self, logits: Tensor, drawing: Drawing) -> tuple[Tensor, Tensor]:
        random = self._temperature.column.host[drawing.rows] > 0
        if not random.any():
            return pick(logits)
        key = keys(self._seeds.flush()[drawing.device_rows], drawing.device_lens)
        cut = self._cut[0].active(drawing) | self._cut[1].active(drawing)
        ids = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
        scores = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
        for which, how in ((~random, pick), (random & ~cut, draw)):
            if which.any():
                at = torch.from_numpy(np.flatnonzero(which)).to(logits.device)
                part = logits if which.all() else logits[at]
                ids[at], scores[at] = how(part) if how is pick else draw(part, key[at])
        for row in np.flatnonzero(random & cut).tolist():
            ids[row], scores[row] = self._draw_cut(logits[row], key[row])
        return ids, scores

    @staticmethod
    def _draw_cut(logits: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Of a row of which few tokens are left."""
        ids = left(logits)
        if not len(ids):  # all -inf, or not a number: the score will say so
            ids = logits.argmax(keepdim=True)
        return draw_among(logits[ids], ids, key)

    def _report(self, source: Tensor, tokens: Tensor, asked: np.ndarray, rows: np.ndarray) -> LogprobArrays:
        named = [self._named.get(row) for row in rows.tolist()]
        chosen = tokens[torch.from_numpy(asked).to(tokens.device)]
        return report(
            source,
            chosen,
            self._width[rows].tolist(),
            named if any(n is not None for n in named) else None,
            self._normal,
        )

    @staticmethod
    def _rows_of(logits: Tensor, at: np.ndarray) -> Tensor:
        return logits if len(at) == len(logits) else logits[torch.from_numpy(at).to(logits.device)]

    @staticmethod
    def _explain(scores: Tensor, good: Tensor) -> dict[int, str]:
        values = scores.tolist()
        return {
            row: "no token is allowed here"
            if values[row] == float("-inf")
            else "the model gave logits that are not numbers"
            for row, sound in enumerate(good.tolist())
            if not sound
        }
