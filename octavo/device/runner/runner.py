"""ModelRunner: one step of this rank, as a body (inputs, model) and a tail (logits, sampling, commit).

For a device whose work is done when a call returns; ``runner.later`` is for the others.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from msgspec import structs
from torch import Tensor

from octavo.common.log import logger
from octavo.device.batch.batch import InputBatch
from octavo.device.batch.blocks import BlockTables
from octavo.device.batch.buffers import Columns, ship
from octavo.device.batch.state import RequestState
from octavo.device.batch.windows import Windows
from octavo.device.kernels.step_out import commit, commit_windows
from octavo.device.layers.step import Bound, Step, running
from octavo.device.models.base import CausalLM
from octavo.device.runner.decode import Decode
from octavo.device.runner.mixed import Mixed
from octavo.device.runner.prepare import prepare
from octavo.device.runner.ticket import DoneTicket
from octavo.device.sampling.logprobs import LogprobsMode, report_prompt
from octavo.device.sampling.sampler import Bring, Later, Sampler
from octavo.device.sampling.stage import Drawing
from octavo.wire.kv import KVGroup
from octavo.wire.plan import GrammarMasks, NewRow, StepPlan
from octavo.wire.ports import Ticket
from octavo.wire.result import LogprobArrays, PromptLogprobs, StepExtras, StepResult, joined

_log = logger(__name__)

#: Numbers of logits that are in memory at once; rows are sampled in pieces that fit.
LOGITS = 1 << 24


@dataclass(eq=False, slots=True)
class Draws:
    """What a tail drew: tokens int64[N], scores float32[N], good bool[N], faults by logit row, and log-probabilities of
    logit rows."""

    tokens: Tensor
    scores: Tensor
    good: Tensor
    faults: dict[int, str]
    asked: np.ndarray
    logprobs: LogprobArrays | Later | None


@dataclass(eq=False, slots=True)
class Body:
    """A step between ``forward`` and ``sample``; ``fault`` where the body raised."""

    plan: StepPlan
    batch: InputBatch | None = None
    hidden: Tensor | None = None
    fault: str | None = None
    decode: Decode | None = None
    mixed: Mixed | None = None


class ModelRunner:
    """Runs plans over ``model``. Made after the cache: ``bound`` has every attention layer's backend and cache.

    ``drafts``: draft tokens of a row that one step verifies.
    """

    drafts = 32

    def __init__(
        self,
        model: CausalLM,
        vocab: int,
        groups: Sequence[KVGroup],
        bound: Mapping[str, Bound],
        *,
        rows: int,
        max_model_len: int,
        page: int,
        device: torch.device,
        logprobs_mode: LogprobsMode = "raw_logprobs",
        fixed: bool = False,
    ):
        self.model = model
        self.vocab = vocab
        self.state = RequestState(rows, max_model_len, device)
        self.tables = BlockTables(len(groups), rows, max_model_len, page, device)
        self.sampler = Sampler(self.state, vocab, device, logprobs_mode, fixed)
        self._normal = logprobs_mode.endswith("logprobs")
        self._groups = list(groups)
        self._bound = dict(bound)
        self._columns = Columns(device)
        self._prompt_widths: dict[int, int] = {}
        self._body: Body | None = None
        self._device = device
        self._piece = max(1, LOGITS // vocab)

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> None:
        """Apply the plan's writes and run the body of its first sub-step. Errors wait for ``sample``."""
        assert self._body is None, "forward twice without sample"
        self._body = Body(plan)
        try:
            self._apply(plan)
            if len(plan.rows):
                self._run_body(self._body, 0)
        except Exception as error:
            self._fail(self._body, error)

    @torch.inference_mode()
    def sample(self, masks: GrammarMasks | None) -> list[Ticket]:
        """Finish the step that ``forward`` began: a ticket a sub-step."""
        body, self._body = self._body, None
        assert body is not None, "sample without forward"
        plan = body.plan
        tickets: list[Ticket] = []
        for ahead in range(plan.repeat if len(plan.rows) else 1):
            try:
                if ahead and body.fault is None:
                    self._run_body(body, ahead)
                if body.fault is None:
                    tickets.append(self._tail(body, masks, plan.step + ahead))
                    continue
            except Exception as error:
                self._fail(body, error)
            tickets.append(DoneTicket(nothing(plan, plan.step + ahead, body.fault)))
        return tickets

    def _fail(self, body: Body, error: Exception) -> None:
        _log.exception("step %d failed", body.plan.step)
        body.fault = f"{type(error).__name__}: {error}"

    def _apply(self, plan: StepPlan) -> None:
        if len(plan.killed):
            self.state.kill(plan.killed)
        for new in plan.new:
            self._add(new)
        self.tables.apply(plan.pages)
        self.state.flush(*self.tables.staged)
        self.sampler.flush()
        if len(plan.zero):
            self._clear(plan.zero)

    def _add(self, new: NewRow) -> None:
        self.state.add(new)
        self.sampler.add(new)
        self._prompt_widths.pop(new.row, None)
        if new.sampling.prompt_logprobs is not None:
            self._prompt_widths[new.row] = new.sampling.prompt_logprobs

    def _run_body(self, body: Body, ahead: int) -> None:
        batch = prepare(body.plan, self.state, self.tables, self._columns, ahead)
        body.hidden = self._forward(batch)
        body.batch = batch

    def _forward(self, batch: InputBatch) -> Tensor:
        metas = [self._plan_group(batch, group) for group in range(len(self._groups))]
        with running(Step(batch, self._bound, metas)):
            return self.model.forward(batch.ids, batch.embeds).last

    def _plan_group(self, batch: InputBatch, group: int):
        spec = self._groups[group].spec
        backend = self._bound[self._groups[group].layers[0]].backend
        return backend.plan(batch, spec, group)

    def _tail(self, body: Body, masks: GrammarMasks | None, step: int) -> Ticket:
        plan, batch, hidden = body.plan, body.batch, body.hidden
        if batch is None or hidden is None:
            return DoneTicket(nothing(plan, step))
        if batch.windows is not None:
            return self._tail_of_windows(body, batch, hidden, batch.windows, masks, step)
        drawing = Drawing(
            plan.rows[plan.samples],
            batch.host_lens[batch.host_logit_rows],
            batch.rows[batch.logit_rows],
            batch.seq_lens[batch.logit_rows],
        )
        draws = self._draw(hidden[batch.logits_at], drawing, plan, masks)
        if self.state.keeps[drawing.rows].any():
            self._remember(drawing, draws.tokens, draws.good)
        counts = self._commit(
            batch.rows, batch.seq_lens, batch.logit_rows, draws.tokens, draws.good, self.state.widest_stops
        )
        sampled = np.flatnonzero(plan.samples)
        result = nothing(plan, step)
        result.tokens[sampled, 0] = draws.tokens.numpy(force=True)
        result.counts[sampled] = counts.numpy(force=True)
        for at, why in draws.faults.items():
            result.row_faults[int(sampled[at])] = why
            self._heal(int(drawing.rows[at]))
        extras = StepExtras()
        if draws.logprobs is not None:
            assert not callable(draws.logprobs)
            extras.rows, extras.logprobs = sampled[draws.asked].astype(np.int32), draws.logprobs
        if self._prompt_widths:
            extras.prompt = self._prompt_logprobs(plan, batch, hidden)
        return DoneTicket(result, extras)

    def _tail_of_windows(
        self,
        body: Body,
        batch: InputBatch,
        hidden: Tensor,
        windows: Windows,
        masks: GrammarMasks | None,
        step: int,
    ) -> Ticket:
        """``_tail`` where rows have drafts: every place is drawn as if the drafts before it had been said, and counts
        if they were. If anything is not a number, the step runs again without drafts: what is wrong behind a token
        spoils that token too, and a draft may not be to blame for the end of a request."""
        plan, state, which = body.plan, self.state, batch.logit_rows
        drawing = Drawing(
            batch.host_rows[batch.host_logit_rows],
            batch.host_lens[batch.host_logit_rows] - windows.behind,
            batch.rows[which],
            batch.seq_lens[which] - ship(windows.behind.astype(np.int64), self._device),
            windows.ahead,
        )
        sampled = np.flatnonzero(plan.samples)
        self._foresee(plan.rows[sampled], drawing.lens[windows.at[:, 0]], windows.drafts)
        draws = self._draw(hidden[batch.logits_at], drawing, plan, masks, windows=windows)
        spoiled = [line for line in draws.faults if draws.scores[line] != float("-inf")]
        if spoiled:
            for row in set(drawing.rows[spoiled].tolist()):
                self._heal(row)
            self._run_body(without := Body(_without_drafts(plan)), 0)
            return self._tail(without, None if masks is None else _without_windows(masks, plan), step)
        at = ship(windows.at, self._device)
        counts, failed = (
            found.numpy(force=True)
            for found in commit_windows(
                batch.rows,
                batch.seq_lens,
                which[at[:, 0]],
                draws.tokens[at],
                draws.good[at],
                ship(windows.drafts, self._device),
                *self._truth(state.widest_stops),
            )
        )
        said = windows.ahead < counts[windows.owner]
        keeps = np.flatnonzero(said & state.keeps[drawing.rows])
        if len(keeps):
            picked = ship(keeps, self._device)
            self._remember(drawing.take(keeps), draws.tokens[picked], draws.good[picked])
        result = StepResult(step, np.zeros((len(plan.rows), windows.at.shape[1]), np.int64), nothing(plan, step).counts)
        result.tokens[sampled] = draws.tokens[at].numpy(force=True)
        result.counts[sampled] = counts
        for line, why in draws.faults.items():
            owner = int(windows.owner[line])
            if failed[owner] and windows.ahead[line] == counts[owner]:  # not a mask behind a wrong draft
                result.row_faults[int(sampled[owner])] = why
        extras = StepExtras()
        if draws.logprobs is not None and (told := said[draws.asked]).any():
            assert not callable(draws.logprobs)
            arrays = draws.logprobs
            extras.rows = sampled[windows.owner[draws.asked[told]]].astype(np.int32)
            extras.logprobs = LogprobArrays(arrays.ids[told], arrays.values[told], arrays.ranks[told])
        if self._prompt_widths:
            extras.prompt = self._prompt_logprobs(plan, batch, hidden)
        return DoneTicket(result, extras)

    def _foresee(self, rows: np.ndarray, lens: np.ndarray, drafts: np.ndarray) -> None:
        """Drafts int64[S, W], into the history of the rows that keep one: what is said will overwrite them."""
        guessed = (drafts >= 0).sum(1)
        for line in np.flatnonzero(self.state.keeps[rows] & (guessed > 0)).tolist():
            start, count = int(lens[line]), int(guessed[line])
            values = ship(drafts[line, :count].astype(np.int32), self._device)
            self.state.history[int(rows[line]), start : start + count] = values

    def _commit(
        self, rows: Tensor, seq_lens: Tensor, which: Tensor, tokens: Tensor, good: Tensor, stops: int
    ) -> Tensor:
        return commit(rows, seq_lens, which, tokens, good, *self._truth(stops))

    def _truth(self, stops: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """What commit reads and changes of all rows, with ``stops`` columns of stop ids."""
        state = self.state
        return (
            state.computed.tensor,
            state.last.tensor,
            state.alive.tensor,
            state.limit.device,
            state.min_len.device,
            state.stops.device[:, :stops],
        )

    def _remember(self, drawing: Drawing, tokens: Tensor, good: Tensor) -> None:
        """What rows drew, into the history of those that keep one."""
        self.sampler.commit(drawing, tokens, good)
        state = self.state
        at = ship(np.flatnonzero(state.keeps[drawing.rows]), self._device)
        places = drawing.device_lens[at].clamp(max=state.length - 1)
        state.history[drawing.device_rows[at], places] = tokens[at].to(torch.int32)

    def _draw(
        self,
        hidden: Tensor,
        drawing: Drawing,
        plan: StepPlan,
        masks: GrammarMasks | None,
        bring: Bring | None = None,
        windows: Windows | None = None,
    ) -> Draws:
        """Sample N logit rows, in pieces of rows whose logits fit."""
        count = len(drawing.rows)
        masked, bits = np.empty(0, np.int64), None
        if masks is not None and len(masks.rows):
            masked, bits = (np.cumsum(plan.samples) - 1)[masks.rows], masks.bits
            if windows is not None:
                masked = windows.of_rows(masked)
        step = self._piece
        pieces = []
        for low in range(0, count, step):
            high = min(low + step, count)
            here = (masked >= low) & (masked < high)
            part = drawing if high - low == count else drawing.take(np.arange(low, high))
            logits = self.model.logits(hidden[low:high])
            mine = None if bits is None else bits[here]
            pieces.append(self.sampler.sample(logits, part, masked[here] - low, mine, bring))
        if len(pieces) == 1:
            piece = pieces[0]
            return Draws(piece.tokens, piece.scores, piece.good, piece.faults, piece.asked, piece.logprobs)
        if not pieces:
            none = torch.empty(0, dtype=torch.int64, device=self._device)
            return Draws(none, none.float(), none.bool(), {}, np.empty(0, np.int64), None)
        reports = [piece.logprobs for piece in pieces if piece.logprobs is not None]
        return Draws(
            torch.cat([piece.tokens for piece in pieces]),
            torch.cat([piece.scores for piece in pieces]),
            torch.cat([piece.good for piece in pieces]),
            {at + nth * step: why for nth, piece in enumerate(pieces) for at, why in piece.faults.items()},
            np.concatenate([piece.asked + nth * step for nth, piece in enumerate(pieces)]),
            _all_of(reports),
        )

    def _prompt_logprobs(self, plan: StepPlan, batch: InputBatch, hidden: Tensor) -> list[PromptLogprobs]:
        return [
            PromptLogprobs(
                row,
                epoch,
                start,
                report_prompt(hidden[part], targets, self.model.logits, self.vocab, width, self._normal),
            )
            for row, epoch, start, part, targets, width in self._prompt_pieces(plan, batch)
        ]

    def _prompt_pieces(self, plan: StepPlan, batch: InputBatch) -> Iterator[tuple[int, int, int, slice, Tensor, int]]:
        """Of each row that wants its prompt's: row, epoch, the first position spoken of, the step's tokens, the tokens
        that follow them int64[n], and how many alternatives."""
        for i in np.flatnonzero(plan.known).tolist():
            row = int(plan.rows[i])
            if row not in self._prompt_widths:
                continue
            start = int(plan.computed[i]) + 1
            stop = min(start + int(plan.takes[i]), int(self.state.prompt[row]))
            if stop <= start:
                continue
            first = int(batch.host_starts[i])
            targets = self.state.history[row, start:stop].long()
            part = slice(first, first + stop - start)
            yield row, int(plan.epochs[i]), start, part, targets, self._prompt_widths[row]

    def _clear(self, pages: np.ndarray) -> None:
        for bound in self._bound.values():
            bound.cache.data[ship(pages.astype(np.int64), self._device)] = 0

    def _heal(self, row: int) -> None:
        """Take what is not a number out of a failed row's pages: their next owner's masked positions are multiplied by
        0, which would not hide it."""
        for bound in self._bound.values():
            pages = np.unique(self.tables.host[bound.group][row])
            held = ship(pages.astype(np.int64), self._device)
            data = bound.cache.data
            data[held] = torch.nan_to_num(data[held], nan=0.0, posinf=0.0, neginf=0.0)


def nothing(plan: StepPlan, step: int, fault: str | None = None) -> StepResult:
    rows = len(plan.rows)
    return StepResult(step, np.zeros((rows, 1), np.int64), np.zeros(rows, np.int32), fault)


def _without_drafts(plan: StepPlan) -> StepPlan:
    nobody = np.zeros_like(plan.drafts)
    return structs.replace(plan, takes=plan.takes - plan.drafts, drafts=nobody, draft_tokens=plan.draft_tokens[:0])


def _without_windows(masks: GrammarMasks, plan: StepPlan) -> GrammarMasks:
    """The first line of each row."""
    widths = 1 + plan.drafts[masks.rows]
    return GrammarMasks(masks.rows, masks.bits[np.cumsum(widths) - widths])


def _all_of(reports: list[LogprobArrays | Later]) -> LogprobArrays | Later | None:
    """The pieces' log-probabilities as one; later, if they come later."""
    if any(callable(one) for one in reports):
        return lambda: joined([one() if callable(one) else one for one in reports])
    there = [one for one in reports if not callable(one)]
    return joined(there) if there else None
