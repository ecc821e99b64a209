"""ModelRunner: one step of this rank, as a body (inputs, model) and a tail (logits, sampling, commit).

Where the device works on after a call has returned, nothing here waits for it: tokens come back through the ring, the
rest by copies behind an event, and decode steps are graphs (``runner.decode``).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from octavo.common.log import logger
from octavo.device.attention.base import GraphUse
from octavo.device.batch.batch import InputBatch
from octavo.device.batch.blocks import BlockTables
from octavo.device.batch.buffers import Columns, ship
from octavo.device.batch.state import RequestState
from octavo.device.kernels.step_out import commit
from octavo.device.layers.step import Bound, Step, running
from octavo.device.models.base import CausalLM
from octavo.device.platforms.base import Platform
from octavo.device.runner.decode import Decode, DecodeSteps, padded
from octavo.device.runner.mixed import Mixed, MixedSteps, padded_rows
from octavo.device.runner.prepare import prepare
from octavo.device.runner.ring import Copies, Ring, RingTicket
from octavo.device.runner.ticket import DoneTicket
from octavo.device.sampling.logprobs import LogprobsMode, report_later, report_prompt
from octavo.device.sampling.sampler import Bring, Draw, Later, Sampler
from octavo.device.sampling.stage import Drawing
from octavo.wire.arrays import ints
from octavo.wire.kv import KVGroup
from octavo.wire.plan import GrammarMasks, NewRow, StepPlan
from octavo.wire.ports import Ticket
from octavo.wire.result import LogprobArrays, PromptLogprobs, StepExtras, StepResult, joined

_log = logger(__name__)

#: Numbers of logits that are in memory at once; rows are sampled in pieces that fit.
LOGITS = 1 << 24
#: The same where memory is a GPU's: 441 rows of a vocabulary of 151,936.
LOGITS_ASYNC = 1 << 26


@dataclass(eq=False, slots=True)
class _Draws:
    """What a tail drew: tokens int64[N], scores float32[N], good bool[N], faults by logit row, and log-probabilities of
    logit rows."""

    tokens: Tensor
    scores: Tensor
    good: Tensor
    faults: dict[int, str]
    asked: np.ndarray
    logprobs: LogprobArrays | Later | None


@dataclass(eq=False, slots=True)
class _Body:
    """A step between ``forward`` and ``sample``; ``fault`` where the body raised."""

    plan: StepPlan
    batch: InputBatch | None = None
    hidden: Tensor | None = None
    fault: str | None = None
    decode: Decode | None = None
    mixed: Mixed | None = None


class ModelRunner:
    """Runs plans over ``model``. Made after the cache: ``bound`` has every attention layer's backend and cache."""

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
        platform: Platform | None = None,
        lead: int = 1,
        eager: bool = False,
    ):
        """``platform``: None for one whose work is done when a call returns. ``lead``: sub-steps that may be in flight.
        ``eager``: no graphs."""
        self.model = model
        self.vocab = vocab
        self.state = RequestState(rows, max_model_len, device)
        self.tables = BlockTables(len(groups), rows, max_model_len, page, device)
        self.sampler = Sampler(self.state, vocab, device, logprobs_mode)
        self._normal = logprobs_mode.endswith("logprobs")
        self._groups = list(groups)
        self._bound = dict(bound)
        self._columns = Columns(device)
        self._prompt_widths: dict[int, int] = {}
        self._body: _Body | None = None
        self._device = device
        self._async = platform if platform is not None and platform.asynchronous else None
        self._broken: list[int] = []
        self._decode: DecodeSteps | None = None
        self._mixed: MixedSteps | None = None
        if self._async is not None:
            self._ring = Ring(self._async, max(padded(rows), padded_rows(rows)), 2 * lead + 2)
            if all(backend.graphs >= GraphUse.DECODE for backend in {one.backend for one in bound.values()}):
                capture = self._async.graphs and not eager
                parts = self.state, self.tables, self._async, self._forward, self._short, rows, capture
                self._decode = DecodeSteps(*parts)
                if all(backend.graphs == GraphUse.ALWAYS for backend in {one.backend for one in bound.values()}):
                    self._mixed = MixedSteps(*parts)

    @torch.inference_mode()
    def warm(self, sizes: Sequence[int]) -> None:
        """Run decode steps of these sizes twice on the spare row, which captures them: what is made on first use makes
        nobody wait then."""
        if self._async is None or self._decode is None:
            return
        self._async.enter()
        for size in sorted({padded(size) for size in sizes}):
            rows = ints(np.full(size, self.state.rows))
            for draw in (Draw.GREEDY, Draw.WARM):
                for _ in range(2):
                    self._ring.publish(self._decode.tail(self._decode.body(rows), draw), 0)

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> None:
        """Apply the plan's writes and run the body of its first sub-step. Errors wait for ``sample``."""
        assert self._body is None, "forward twice without sample"
        self._body = _Body(plan)
        try:
            if self._async is not None:
                self._async.enter()
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
                    tail = self._tail if self._async is None else self._tail_later
                    tickets.append(tail(body, masks, plan.step + ahead))
                    continue
            except Exception as error:
                self._fail(body, error)
            tickets.append(DoneTicket(_nothing(plan, plan.step + ahead, body.fault)))
        return tickets

    def _fail(self, body: _Body, error: Exception) -> None:
        _log.exception("step %d failed", body.plan.step)
        body.fault = f"{type(error).__name__}: {error}"
        if self._async is not None:
            self._ring.resync()

    def _apply(self, plan: StepPlan) -> None:
        if self._broken:
            for row in set(self._broken):
                self._heal(row)
            self._broken.clear()
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

    def _run_body(self, body: _Body, ahead: int) -> None:
        if self._decode is not None and self._decode.takes(body.plan):
            body.decode = self._decode.body(body.plan.rows)
            return
        if self._mixed is not None and self._plain(body.plan) and self._mixed.takes(body.plan):
            body.mixed = self._mixed.body(body.plan)
            return
        batch = prepare(body.plan, self.state, self.tables, self._columns, ahead)
        body.hidden = self._forward(batch)
        body.batch = batch

    def _plain(self, plan: StepPlan) -> bool:
        """Whether a plan's tail needs no more than ``_short``."""
        if len(plan.masked) or (self._prompt_widths and len(plan.chunk)):
            return False
        return self.sampler.kind(plan.rows[plan.samples], (plan.computed + plan.takes)[plan.samples]) != Draw.FULL

    def _forward(self, batch: InputBatch) -> Tensor:
        metas = [self._plan_group(batch, group) for group in range(len(self._groups))]
        with running(Step(batch, self._bound, metas)):
            return self.model.forward(batch.ids, batch.embeds).last

    def _plan_group(self, batch: InputBatch, group: int):
        spec = self._groups[group].spec
        backend = self._bound[self._groups[group].layers[0]].backend
        return backend.plan(batch, spec, group)

    def _tail(self, body: _Body, masks: GrammarMasks | None, step: int) -> DoneTicket:
        plan, batch, hidden = body.plan, body.batch, body.hidden
        if batch is None or hidden is None:
            return DoneTicket(_nothing(plan, step))
        drawing = Drawing(
            plan.rows[plan.samples],
            batch.host_lens[batch.host_logit_rows],
            batch.rows[batch.logit_rows],
            batch.seq_lens[batch.logit_rows],
        )
        draws = self._draw(hidden[batch.logits_at], drawing, plan, masks)
        if self.state.keeps[drawing.rows].any():
            self._remember(drawing, draws.tokens)
        counts = self._commit(
            batch.rows, batch.seq_lens, batch.logit_rows, draws.tokens, draws.good, self.state.widest_stops
        )
        sampled = np.flatnonzero(plan.samples)
        result = _nothing(plan, step)
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

    def _commit(
        self, rows: Tensor, seq_lens: Tensor, which: Tensor, tokens: Tensor, good: Tensor, stops: int
    ) -> Tensor:
        state = self.state
        return commit(
            rows,
            seq_lens,
            which,
            tokens,
            good,
            state.computed.tensor,
            state.last.tensor,
            state.alive.tensor,
            state.limit.device,
            state.min_len.device,
            state.stops.device[:, :stops],
        )

    # Where the device works on: the same, without waiting.

    def _tail_later(self, body: _Body, masks: GrammarMasks | None, step: int) -> Ticket:
        plan = body.plan
        if not len(plan.rows):
            return DoneTicket(_nothing(plan, step))
        assert self._async is not None
        sampled = np.flatnonzero(plan.samples)
        rows = plan.rows[sampled]
        lens = (plan.computed + plan.takes)[sampled] + np.int32(step - plan.step)
        kind = self.sampler.kind(rows, lens) if masks is None or not len(masks.rows) else Draw.FULL
        extras = None
        if body.decode is not None and kind != Draw.FULL:
            assert self._decode is not None
            words = self._decode.tail(body.decode, kind)
        elif body.mixed is not None:
            assert self._mixed is not None
            assert kind != Draw.FULL, "a mask that the plan did not announce"
            words = self._mixed.tail(body.mixed, kind)
        else:
            batch, hidden = self._eager(body, len(rows))
            if kind != Draw.FULL:
                words = self._short(
                    kind,
                    self.state.widest_stops,
                    batch.rows,
                    batch.seq_lens,
                    batch.logit_rows,
                    hidden[batch.logits_at],
                )
                bring = None
            else:
                bring = Copies(self._async)
                words, extras = self._full(plan, batch, hidden, rows, lens, masks, bring)
            extras = self._with_prompts(plan, batch, hidden, bring, extras)
        tag = self._ring.publish(words, len(rows))

        def broken(at: np.ndarray) -> None:
            self._broken += rows[at].tolist()

        return RingTicket(step, len(plan.rows), sampled, self._ring, tag, self._async, broken, extras)

    def _eager(self, body: _Body, count: int) -> tuple[InputBatch, Tensor]:
        """The step's batch and hidden states; of a padded decode step, its first ``count`` rows."""
        if body.decode is None:
            assert body.batch is not None
            assert body.hidden is not None
            return body.batch, body.hidden
        batch, hidden = body.decode.batch, body.decode.hidden
        assert batch is not None
        assert hidden is not None
        part = slice(count)
        mine = replace(
            batch,
            rows=batch.rows[part],
            seq_lens=batch.seq_lens[part],
            logits_at=batch.logits_at[part],
            logit_rows=batch.logit_rows[part],
        )
        return mine, hidden

    def _short(
        self, kind: Draw, stops: int, rows: Tensor, seq_lens: Tensor, which: Tensor | None, hidden: Tensor
    ) -> Tensor | None:
        """A tail of device operations alone, as ``runner.decode.Tail`` says. It may be captured."""
        drawing, lens = (rows, seq_lens) if which is None else (rows[which], seq_lens[which])
        if which is None:
            which = torch.arange(len(rows), device=self._device)
        step = max(1, LOGITS_ASYNC // self.vocab)
        narrow = {"narrow": True} if kind <= Draw.WARM and hidden.is_cuda else {}
        drawn = [
            self.sampler.draw(
                kind,
                self.model.logits(hidden[low : low + step], **narrow),
                drawing[low : low + step],
                lens[low : low + step],
            )
            for low in range(0, max(len(drawing), 1), step)
        ]
        tokens, scores = drawn[0] if len(drawn) == 1 else (torch.cat(parts) for parts in zip(*drawn, strict=True))
        return self._words(rows, seq_lens, which, drawing, tokens, scores, stops)

    def _words(
        self,
        rows: Tensor,
        seq_lens: Tensor,
        which: Tensor,
        drawing: Tensor,
        tokens: Tensor,
        scores: Tensor,
        stops: int,
    ) -> Tensor | None:
        living = self.state.alive.tensor[drawing]
        counts = self._commit(rows, seq_lens, which, tokens, scores.abs() < float("inf"), stops)
        return self._ring.pack(tokens, counts, living, scores)

    def _full(
        self,
        plan: StepPlan,
        batch: InputBatch,
        hidden: Tensor,
        rows: np.ndarray,
        lens: np.ndarray,
        masks: GrammarMasks | None,
        copies: Copies,
    ) -> tuple[Tensor | None, Callable[[float], StepExtras] | None]:
        """A tail with every stage: words, and what makes its extras."""
        device_rows = batch.rows[batch.logit_rows]
        drawing = Drawing(rows, lens, device_rows, batch.seq_lens[batch.logit_rows])
        draws = self._draw(hidden[batch.logits_at], drawing, plan, masks, copies.bring)
        if self.state.keeps[rows].any():
            self._remember(drawing, draws.tokens)
        words = self._words(
            batch.rows,
            batch.seq_lens,
            batch.logit_rows,
            device_rows,
            draws.tokens,
            draws.scores,
            self.state.widest_stops,
        )
        if draws.logprobs is None:
            return words, None
        sampled, later = np.flatnonzero(plan.samples)[draws.asked].astype(np.int32), draws.logprobs
        assert callable(later)
        copies.sent()

        def extras(timeout: float) -> StepExtras:
            copies.wait(timeout)
            return StepExtras(sampled, later())

        return words, extras

    def _with_prompts(
        self,
        plan: StepPlan,
        batch: InputBatch,
        hidden: Tensor,
        copies: Copies | None,
        extras: Callable[[float], StepExtras] | None,
    ) -> Callable[[float], StepExtras] | None:
        """``extras`` and the log-probabilities of the step's prompt pieces."""
        if not self._prompt_widths or not len(plan.chunk):
            return extras
        assert self._async is not None
        copies = copies or Copies(self._async)
        pieces = [
            (row, epoch, start, self._prompt_later(hidden[part], targets, width, copies.bring))
            for row, epoch, start, part, targets, width in self._prompt_pieces(plan, batch)
        ]
        if not pieces:
            return extras
        copies.sent()

        def both(timeout: float) -> StepExtras:
            made = StepExtras() if extras is None else extras(timeout)
            copies.wait(timeout)
            made.prompt = [PromptLogprobs(row, epoch, start, later()) for row, epoch, start, later in pieces]
            return made

        return both

    def _prompt_later(self, hidden: Tensor, targets: Tensor, width: int, bring: Bring) -> Later:
        step = max(1, LOGITS_ASYNC // self.vocab)
        parts = [
            report_later(self.model.logits(part), chosen, [width] * len(chosen), None, self._normal, bring)
            for part, chosen in zip(hidden.split(step), targets.split(step), strict=True)
        ]

        return lambda: joined([part() for part in parts])

    def _remember(self, drawing: Drawing, tokens: Tensor) -> None:
        """What rows drew, into the history of those that keep one."""
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
    ) -> _Draws:
        """Sample N logit rows, in pieces of rows whose logits fit."""
        count = len(drawing.rows)
        masked, bits = np.empty(0, np.int64), None
        if masks is not None and len(masks.rows):
            masked, bits = (np.cumsum(plan.samples) - 1)[masks.rows], masks.bits
        step = max(1, (LOGITS if bring is None else LOGITS_ASYNC) // self.vocab)
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
            return _Draws(piece.tokens, piece.scores, piece.good, piece.faults, piece.asked, piece.logprobs)
        if not pieces:
            none = torch.empty(0, dtype=torch.int64, device=self._device)
            return _Draws(none, none.float(), none.bool(), {}, np.empty(0, np.int64), None)
        reports = [piece.logprobs for piece in pieces if piece.logprobs is not None]
        return _Draws(
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


def _nothing(plan: StepPlan, step: int, fault: str | None = None) -> StepResult:
    rows = len(plan.rows)
    return StepResult(step, np.zeros((rows, 1), np.int64), np.zeros(rows, np.int32), fault)


def _all_of(reports: list[LogprobArrays | Later]) -> LogprobArrays | Later | None:
    """The pieces' log-probabilities as one; later, if they come later."""
    if any(callable(one) for one in reports):
        return lambda: joined([one() if callable(one) else one for one in reports])
    there = [one for one in reports if not callable(one)]
    return joined(there) if there else None
