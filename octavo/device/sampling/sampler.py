"""Sampler: logits to tokens, through stages in a fixed order.

grammar mask, allowed ids, logit bias, minimum length, penalties, bad words, temperature, min-p, top-k and top-p, draw.
Raw log-probabilities are those behind the grammar mask. A row's token depends on its logits, its own request and
(seed, position), never on its neighbours.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from octavo.device.batch.buffers import HostMirror, ship
from octavo.device.batch.state import RequestState
from octavo.device.kernels.draw import draw, draw_among, draw_rows, draw_seeded, keys, pick
from octavo.device.kernels.mask import apply_bits
from octavo.device.kernels.truncate import left, min_p, top_k_p
from octavo.device.sampling.limits import Allowed, BadWords, Bias, MinTokens
from octavo.device.sampling.logprobs import LogprobsMode, report, report_later
from octavo.device.sampling.penalties import Penalties
from octavo.device.sampling.shape import MinP, Temperature, TopKP
from octavo.device.sampling.stage import Drawing, Rows, Stage
from octavo.wire.arrays import Ints
from octavo.wire.plan import NewRow
from octavo.wire.result import NO_TOKEN_ALLOWED, LogprobArrays

#: Beyond any request's length.
_FAR = np.array([np.iinfo(np.int32).max], np.int32)


class Draw(enum.IntEnum):
    """What a step's rows need of sampling at most. All but FULL are a few operations that ask the host nothing."""

    GREEDY = 0
    WARM = 1  # temperatures
    CUT = 2  # also min-p, top-k, top-p
    FULL = 3  # whatever stages there are, and log-probabilities


#: Log-probabilities that are on their way to the host: called when the copies are there.
Later = Callable[[], LogprobArrays]
#: Brings a device tensor to the host: an array that will hold it.
Bring = Callable[[Tensor], np.ndarray]


@dataclass(frozen=True, eq=False, slots=True)
class Sampled:
    """tokens int64[N], scores float32[N]; good bool[N]: whether the row's logits were sound; faults: why not, by logit
    row, where the host may know already; ``asked`` int[A]: logit rows with log-probabilities, and theirs."""

    tokens: Tensor
    scores: Tensor
    good: Tensor
    faults: dict[int, str]
    asked: np.ndarray
    logprobs: LogprobArrays | Later | None


class Sampler:
    """Keeps what requests ask of sampling, by row, and draws. ``fixed``: to the bit as if each row were alone."""

    def __init__(
        self,
        state: RequestState,
        vocab: int,
        device: torch.device,
        mode: LogprobsMode = "raw_logprobs",
        fixed: bool = False,
    ):
        rows = Rows(state, vocab, device)
        self.vocab = vocab
        self._fixed = fixed
        self._state = state
        self._raw = mode.startswith("raw")
        self._normal = mode.endswith("logprobs")
        self._seeds = HostMirror((rows.count,), np.int64, device)
        self._wants = np.zeros(rows.count, np.bool_)
        self._width = np.zeros(rows.count, np.int32)
        self._named: dict[int, np.ndarray] = {}
        self._draws = np.zeros(rows.count, np.int8)
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
        self._draws[row] = self._need(row)

    def _need(self, row: int) -> Draw:
        unused = self._seeds.device[:0]
        alone = Drawing(np.array([row]), _FAR, unused, unused)
        plain = self._temperature, *self._cut
        if self._wants[row] or any(stage.active(alone).any() for stage in self._stages if stage not in plain):
            return Draw.FULL
        if self._temperature.column.host[row] == 0:
            return Draw.GREEDY
        return Draw.CUT if any(stage.active(alone).any() for stage in self._cut) else Draw.WARM

    def kind(self, rows: Ints, lens: Ints) -> Draw:
        """What rows of these lengths need."""
        if (self._state.min_len.host[rows] > lens).any():
            return Draw.FULL
        # what a neighbour needs must not decide how a row's logits are divided
        return Draw(int(self._draws[rows].max(initial=Draw.CUT if self._fixed else Draw.GREEDY)))

    def flush(self) -> None:
        """What ``draw`` reads, to the device."""
        cut = self._cut[0].least, self._cut[1].k, self._cut[1].p
        for mirror in (self._seeds, self._temperature.column, *cut):
            mirror.flush()

    def draw(self, kind: Draw, logits: Tensor, rows: Tensor, lens: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens int64[N] and scores float32[N] of logits [N, V], which are used up (float32 ones where ``kind`` is
        CUT). Asks the host nothing.
        ``kind`` is not FULL. rows, lens int64[N]: persistent rows and their lengths before the draw."""
        if kind == Draw.GREEDY:
            return pick(logits)
        if kind == Draw.WARM:
            return draw_seeded(logits, rows, lens, self._seeds.device, self._temperature.column.device)
        heat = self._temperature.column.device[rows]
        key = keys(self._seeds.device[rows], lens)
        logits.div_(heat.masked_fill(heat == 0, 1.0).unsqueeze(1))
        least, cut = self._cut
        min_p(logits, least.least.device[rows])
        top_k_p(logits, cut.k.device[rows], cut.p.device[rows])
        return draw_rows(logits, key, heat, scaled=True)

    def sample(
        self,
        logits: Tensor,
        drawing: Drawing,
        masked: np.ndarray | None = None,
        bits: Ints | None = None,
        bring: Bring | None = None,
    ) -> Sampled:
        """float32 logits [N, V], which are used up. ``masked`` int[M]: logit rows with a grammar mask, ``bits``
        int32[M, ceil(V / 32)] theirs. ``bring``: nothing is waited for; faults show in the scores alone, and
        log-probabilities come later."""
        if masked is not None and len(masked) and bits is not None:
            self._mask(logits, masked, bits)
        if bring is None and self.kind(drawing.rows, drawing.lens) == Draw.GREEDY:  # no stage has anything to do
            tokens, scores = pick(logits)
            good = scores.isfinite()
            faults = {} if bool(good.all()) else self._explain(scores, good)
            return Sampled(tokens, scores, good, faults, np.empty(0, np.int64), None)
        asked = np.flatnonzero(self._wants[drawing.rows])
        raw = self._copy_of(logits, asked) if len(asked) and self._raw else None
        for stage in self._stages:
            self._run(stage, logits, drawing)
        if bring is None:
            tokens, scores = self._draw(logits, drawing)
        else:
            heat = self._temperature.column.flush()[drawing.device_rows]
            key = keys(self._seeds.flush()[drawing.device_rows], drawing.device_lens)
            tokens, scores = draw_rows(logits, key, heat, scaled=True)
        good = scores.isfinite()
        faults = {} if bring is not None or bool(good.all()) else self._explain(scores, good)
        logprobs = None
        if len(asked):
            source = self._rows_of(logits, asked) if raw is None else raw
            logprobs = self._report(source, tokens, asked, drawing.rows[asked], bring)
        return Sampled(tokens, scores, good, faults, asked, logprobs)

    def commit(self, drawing: Drawing, tokens: Tensor, good: Tensor) -> None:
        """The rows said these tokens int64[N], where they are ``good`` bool[N]: stages that look back are to know."""
        on = self._penalties.active(drawing)
        if on.any():
            at = np.flatnonzero(on)
            picked = ship(at, tokens.device)
            self._penalties.commit(drawing.take(at), tokens[picked], good[picked])

    def _mask(self, logits: Tensor, masked: np.ndarray, bits: Ints) -> None:
        part = self._rows_of(logits, masked)
        apply_bits(part, ship(np.array(bits, np.int32), logits.device))
        if part is not logits:
            logits[ship(masked, logits.device)] = part

    def _run(self, stage: Stage, logits: Tensor, drawing: Drawing) -> None:
        on = stage.active(drawing)
        if on.all():
            stage.apply(logits, drawing)
        elif on.any():
            at = np.flatnonzero(on)
            part = self._rows_of(logits, at)
            stage.apply(part, drawing.take(at))
            logits[ship(at, logits.device)] = part

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
                if how is draw and self._fixed:
                    found = [draw(*one) for one in zip(part.split(1), key[at].split(1), strict=True)]
                    ids[at], scores[at] = (torch.cat(some) for some in zip(*found, strict=True))
                else:
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

    def _report(
        self, source: Tensor, tokens: Tensor, asked: np.ndarray, rows: np.ndarray, bring: Bring | None
    ) -> LogprobArrays | Later:
        given = [self._named.get(row) for row in rows.tolist()]
        named = given if any(ids is not None for ids in given) else None
        chosen, widths = tokens[ship(asked, tokens.device)], self._width[rows].tolist()
        if bring is not None:
            return report_later(source, chosen, widths, named, self._normal, bring)
        return report(source, chosen, widths, named, self._normal)

    @staticmethod
    def _rows_of(logits: Tensor, at: np.ndarray) -> Tensor:
        return logits if len(at) == len(logits) else logits[ship(at, logits.device)]

    @staticmethod
    def _copy_of(logits: Tensor, at: np.ndarray) -> Tensor:
        return logits.clone() if len(at) == len(logits) else logits[ship(at, logits.device)]

    @staticmethod
    def _explain(scores: Tensor, good: Tensor) -> dict[int, str]:
        values = scores.tolist()
        return {
            row: NO_TOKEN_ALLOWED if values[row] == float("-inf") else "the model gave logits that are not numbers"
            for row, sound in enumerate(good.tolist())
            if not sound
        }
