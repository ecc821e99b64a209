"""The runner of a device that works on after a call has returned: nothing here waits for it.

Tokens come back through the ring, the rest by copies behind an event; decode steps and steps with pieces of prompt are
graphs (``runner.decode``, ``runner.mixed``), except where a row wants stages or log-probabilities. A step with drafts
to verify is the exception: it is waited for.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from octavo.device.attention.base import GraphUse
from octavo.device.batch.batch import InputBatch
from octavo.device.kernels.launch import has_kernels
from octavo.device.kernels.step_out import ROWS, finish
from octavo.device.layers.step import Bound
from octavo.device.models.base import CausalLM
from octavo.device.platforms.base import Platform
from octavo.device.runner.decode import DecodeSteps, padded
from octavo.device.runner.mixed import MixedSteps, padded_rows
from octavo.device.runner.ring import Copies, Ring, RingTicket
from octavo.device.runner.runner import Body, ModelRunner, nothing
from octavo.device.runner.ticket import DoneTicket
from octavo.device.sampling.logprobs import report_later
from octavo.device.sampling.sampler import Bring, Draw, Later
from octavo.device.sampling.stage import Drawing
from octavo.wire.arrays import ints
from octavo.wire.kv import KVGroup
from octavo.wire.plan import GrammarMasks, NewRow, StepPlan
from octavo.wire.ports import Ticket
from octavo.wire.result import PromptLogprobs, StepExtras, joined

#: Numbers of logits that are in memory at once: 441 rows of a vocabulary of 151,936.
LOGITS = 1 << 26


def make_runner(*args: Any, platform: Platform, lead: int, eager: bool, **options: Any) -> ModelRunner:
    """The runner for ``platform``; the rest is ``ModelRunner``'s. ``lead``: sub-steps that may be in flight. ``eager``:
    no graphs."""
    if not platform.asynchronous:
        return ModelRunner(*args, **options)
    return AsyncRunner(*args, platform=platform, lead=lead, eager=eager, **options)


class AsyncRunner(ModelRunner):
    """Made after the cache, as ``ModelRunner``."""

    def __init__(
        self,
        model: CausalLM,
        vocab: int,
        groups: Sequence[KVGroup],
        bound: Mapping[str, Bound],
        *,
        rows: int,
        platform: Platform,
        lead: int,
        eager: bool,
        **options: Any,
    ):
        super().__init__(model, vocab, groups, bound, rows=rows, **options)
        self._platform = platform
        self._piece = max(1, LOGITS // vocab)
        self._broken: list[int] = []
        self._places = np.arange(rows)
        #: Rows of the last plan, and what their draw needs; None after somebody has entered a row.
        self._known: tuple[np.ndarray, Draw] | None = None
        self._ring = Ring(platform, max(padded(rows), padded_rows(rows)), 2 * lead + 2)
        self._decode: DecodeSteps | None = None
        self._mixed: MixedSteps | None = None
        least = min(one.backend.graphs for one in bound.values())
        parts = self.state, self.tables, platform, self._forward, self._short, rows, platform.graphs and not eager
        if least >= GraphUse.DECODE:
            self._decode = DecodeSteps(*parts)
        if least == GraphUse.ALWAYS:
            self._mixed = MixedSteps(*parts)

    @torch.inference_mode()
    def warm(
        self,
        sizes: Sequence[int],
        draws: Sequence[Draw] = (Draw.GREEDY, Draw.WARM),
        mixed: Sequence[tuple[int, int]] = (),
        times: int = 2,
    ) -> None:
        """Run decode steps of these sizes on the spare row, twice, which captures them: what is made on first use makes
        nobody wait then. ``mixed``: (tokens, rows) of steps with pieces of prompt. Raises what running or
        capturing raises; steps go on all the same."""
        self._platform.enter()
        try:
            self._warm(sizes, draws, mixed, times)
        except BaseException:
            self._ring.resync()
            raise

    def _warm(self, sizes: Sequence[int], draws: Sequence[Draw], mixed: Sequence[tuple[int, int]], times: int) -> None:
        for _ in range(times if self._decode is not None else 0):
            assert self._decode is not None
            for size in sorted({padded(size) for size in sizes}):
                rows = ints(np.full(size, self.state.rows))
                for draw in draws:
                    self._ring.publish(self._decode.tail(self._decode.body(rows), draw), 0)
        for _ in range(times if self._mixed is not None else 0):
            assert self._mixed is not None
            for tokens, count in mixed:
                for draw in draws:
                    self._ring.publish(self._mixed.tail(self._mixed.spare(tokens, count), draw), 0)

    def _fail(self, body: Body, error: Exception) -> None:
        super()._fail(body, error)
        self._ring.resync()

    def _apply(self, plan: StepPlan) -> None:
        self._platform.enter()
        for row in set(self._broken):
            self._heal(row)
        self._broken.clear()
        super()._apply(plan)

    def _add(self, new: NewRow) -> None:
        super()._add(new)
        self._known = None

    def _run_body(self, body: Body, ahead: int) -> None:
        if len(body.plan.draft_tokens):
            super()._run_body(body, ahead)
        elif self._decode is not None and (body.decode is not None or self._decode.takes(body.plan)):
            body.decode = self._decode.body(body.plan.rows)
        elif self._mixed is not None and self._plain(body.plan) and self._mixed.takes(body.plan):
            body.mixed = self._mixed.body(body.plan)
        else:
            super()._run_body(body, ahead)

    def _plain(self, plan: StepPlan) -> bool:
        """Whether a plan's tail needs no more than ``_short``."""
        if len(plan.masked) or (self._prompt_widths and len(plan.chunk)):
            return False
        return self.sampler.kind(plan.rows[plan.samples], (plan.computed + plan.takes)[plan.samples]) != Draw.FULL

    def _tail(self, body: Body, masks: GrammarMasks | None, step: int) -> Ticket:
        plan = body.plan
        if not len(plan.rows):
            return DoneTicket(nothing(plan, step))
        if body.batch is not None and body.batch.windows is not None:
            return super()._tail(body, masks, step)  # whether its drafts were right must be known before the next plan
        if body.decode is not None:  # all of its rows draw
            sampled, rows = self._places[: len(plan.rows)], plan.rows
        else:
            sampled = np.flatnonzero(plan.samples)
            rows = plan.rows[sampled]
        ahead = step - plan.step
        kind = self._kind(plan, sampled, rows, ahead) if masks is None or not len(masks.rows) else Draw.FULL
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
                bring = Copies(self._platform)
                lens = self._lens(plan, sampled, ahead)
                words, extras = self._full(plan, batch, hidden, rows, lens, masks, bring)
            extras = self._with_prompts(plan, batch, hidden, bring, extras)
        tag = self._ring.publish(words, len(rows))

        def broken(at: np.ndarray) -> None:
            self._broken += rows[at].tolist()

        return RingTicket(step, len(plan.rows), sampled, self._ring, tag, self._platform, broken, extras)

    @staticmethod
    def _lens(plan: StepPlan, sampled: np.ndarray, ahead: int) -> np.ndarray:
        """Tokens of the rows that draw, after sub-step ``ahead``."""
        return (plan.computed + plan.takes)[sampled] + np.int32(ahead)

    def _kind(self, plan: StepPlan, sampled: np.ndarray, rows: np.ndarray, ahead: int) -> Draw:
        """What the draw needs. Plans of the same rows need the same, unless that is everything: which ends where a
        shortest length is reached."""
        if self._known is not None and self._known[0] is rows:
            return self._known[1]
        kind = self.sampler.kind(rows, self._lens(plan, sampled, ahead))
        if kind != Draw.FULL:
            self._known = rows, kind
        return kind

    def _eager(self, body: Body, count: int) -> tuple[InputBatch, Tensor]:
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
        step = self._piece
        narrow = {"narrow": True} if kind <= Draw.WARM and has_kernels(hidden) else {}
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
        which: Tensor | None,
        drawing: Tensor,
        tokens: Tensor,
        scores: Tensor,
        stops: int,
    ) -> Tensor | None:
        """Commit what was drawn, by rows ``which`` (None: all, in order); the ring's words, unless they are there."""
        if self._ring.direct and len(rows) <= ROWS:
            clock, ring = self._ring.clock, self._ring.slots
            finish(rows, seq_lens, which, tokens, scores, *self._truth(stops), clock=clock, ring=ring)
            return None
        if which is None:
            which = torch.arange(len(rows), device=self._device)
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
            self._remember(drawing, draws.tokens, draws.good)
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
        copies = copies or Copies(self._platform)
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
        step = self._piece
        parts = [
            report_later(self.model.logits(part), chosen, [width] * len(chosen), None, self._normal, bring)
            for part, chosen in zip(hidden.split(step), targets.split(step), strict=True)
        ]

        return lambda: joined([part() for part in parts])
