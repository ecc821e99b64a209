"""The ring: what each step drew, as words in pinned memory that name their step, so that no event is needed to read
them.

A word is ``tag << 32 | value``, stored as a whole: who sees the tag sees the value. A step's first word is its pulse,
the others are its logit rows: a token, or one of the codes of ``kernels.words``. Tags count steps, from 1 on, since
fresh memory reads as 0; the device counts its own, so that nothing of a step is patched.
"""

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from octavo.common.math import next_power_of_two
from octavo.device.kernels.launch import has_kernels
from octavo.device.kernels.words import NO_TOKEN, NOT_A_NUMBER, SILENT, TAGS, words
from octavo.device.platforms.base import Platform
from octavo.errors import EngineDead
from octavo.wire.result import NO_TOKEN_ALLOWED, StepExtras, StepResult

FAULTS = {NOT_A_NUMBER: "the model gave logits that are not numbers", NO_TOKEN: NO_TOKEN_ALLOWED}
#: Seconds that a ticket looks without a pause, and those of a pause after that.
SPIN, PAUSE = 100e-6, 20e-6


class Ring:
    """``slots`` steps of up to ``rows`` logit rows. ``slots`` is more than can be in flight.

    ``clock`` int64[1] has the tag of the device's next step. ``direct``: the device puts words into ``slots``
    int64[slots, rows + 1] by itself (``kernels.step_out.finish``).
    """

    def __init__(self, platform: Platform, rows: int, slots: int):
        self.slots = platform.pinned((next_power_of_two(slots), rows + 1), torch.int64)
        self._host = self.slots.numpy()
        self.clock = torch.ones(1, dtype=torch.int64, device=platform.device)
        self.direct = platform.can_store_to_host and has_kernels(self.clock)
        self._next = 1

    def pack(self, tokens: Tensor, counts: Tensor, living: Tensor, scores: Tensor) -> Tensor:
        """A step's words int64[1 + N], of device operations alone: tokens, counts int64[N] and scores float32[N] of N
        logit rows, living bool[N]: the row was alive before."""
        return words(tokens, counts, living, scores, self.clock)

    def publish(self, words: Tensor | None, count: int) -> int:
        """Send the first ``count`` rows of a step's words on their way; the step's tag."""
        tag = self._next
        self._next = (tag + 1) & (TAGS - 1)
        if words is not None:
            slot = tag & (len(self.slots) - 1)
            self.slots[slot, : count + 1].copy_(words[: count + 1], non_blocking=True)
        return tag

    def resync(self) -> None:
        """After a step that failed half way: the device's count is the host's again."""
        self.clock.fill_(self._next)

    def look(self, tag: int, count: int) -> np.ndarray | None:
        """The step's values int64[count], or None as long as one is missing."""
        words = self._host[tag & (len(self.slots) - 1), : count + 1]
        if words[count] >> 32 != tag:
            return None
        seen = words.copy()
        if (seen >> 32 != tag).any():
            return None
        return seen[1:] & 0xFFFFFFFF


class RingTicket:
    """A step's results, from the ring. ``sampled`` int[N]: the plan's rows (of ``rows``) that drew. ``broken`` is
    called with those whose draw failed, as indexes into the logit rows."""

    def __init__(
        self,
        step: int,
        rows: int,
        sampled: np.ndarray,
        ring: Ring,
        tag: int,
        platform: Platform,
        broken: Callable[[np.ndarray], None],
        extras: Callable[[float], StepExtras] | None = None,
    ):
        self.step = step
        self._rows = rows
        self._sampled = sampled
        self._ring = ring
        self._tag = tag
        self._platform = platform
        self._broken = broken
        self._extras = extras
        self._result: StepResult | None = None

    def ready(self) -> bool:
        if self._result is None and (values := self._ring.look(self._tag, len(self._sampled))) is not None:
            self._result = self._read(values)
        return self._result is not None

    def wait(self, timeout: float | None = None) -> StepResult:
        begin = time.perf_counter()
        while not self.ready():
            spent = time.perf_counter() - begin
            if spent < SPIN:
                continue
            if self._platform.idle() and not self.ready():
                raise EngineDead(f"the device did step {self.step} and its results did not come")
            if timeout is not None and spent > timeout:
                raise TimeoutError(f"step {self.step} did not end within {timeout:g} seconds")
            time.sleep(PAUSE)
        assert self._result is not None
        return self._result

    def extras(self) -> StepExtras:
        return StepExtras() if self._extras is None else self._extras(60.0)

    def _read(self, values: np.ndarray) -> StepResult:
        said = values < NO_TOKEN
        if len(values) == self._rows and said.all():
            return StepResult(self.step, values.reshape(-1, 1), np.ones(len(values), np.int32))
        tokens, counts = np.zeros((self._rows, 1), np.int64), np.zeros(self._rows, np.int32)
        result = StepResult(self.step, tokens, counts)
        if said.all():
            tokens[self._sampled, 0] = values
            counts[self._sampled] = 1
            return result
        tokens[self._sampled[said], 0] = values[said]
        counts[self._sampled[said]] = 1
        bad = np.flatnonzero(~said & (values != SILENT))
        for at in bad.tolist():
            result.row_faults[int(self._sampled[at])] = FAULTS[int(values[at])]
        if len(bad):
            self._broken(bad)
        return result


class Copies:
    """Device tensors on their way to pinned memory, for what does not fit a word."""

    def __init__(self, platform: Platform):
        self._platform = platform
        self._event = platform.event()

    def bring(self, tensor: Tensor) -> np.ndarray:
        """An array that will hold the tensor, once ``wait`` has returned."""
        host = self._platform.pinned(tensor.shape, tensor.dtype)
        host.copy_(tensor, non_blocking=True)
        return host.numpy()

    def sent(self) -> None:
        """All that was to be brought is on its way."""
        self._event.record()

    def wait(self, timeout: float) -> None:
        begin = time.perf_counter()
        while not self._event.query():
            spent = time.perf_counter() - begin
            if spent > timeout:
                raise TimeoutError(f"a step's extras did not come within {timeout:g} seconds")
            if spent > SPIN:
                self._platform.idle()
                time.sleep(PAUSE)
