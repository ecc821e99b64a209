"""Bursts: how many decode steps one plan launches back to back, so that the host is asked once for all of them."""

from collections import deque

import numpy as np

from octavo.wire.arrays import Ints
from octavo.wire.plan import REPEAT, Kind, StepPlan

#: Seconds after an arrival in which the next one is expected: nobody is to wait behind a burst then.
QUIET = 0.05
#: What the newest measurement of a step counts, against all before it.
WEIGHT = 0.25


def repeats(fit: int, left: Ints, room: Ints) -> int:
    """How many decode steps a plan launches, where nobody waits and no row needs the host between two tokens.

    ``fit``: as many as an arrival may wait for. Of each row, ``left``: tokens to its limit, behind which it is dead on
    the device: the row that goes furthest bounds the burst; ``room``: tokens for which it has pages.
    """
    most = min(fit, int(left.max()))
    return max(1, min(most, int(np.where(room < left, room, most).min())))


class Pace:
    """When requests came and how long decode steps take, as measured while they run. All times are seconds of one
    clock, which the caller reads. ``patience``: seconds for which an arrival may find the device taken; 0: no bursts.
    """

    def __init__(self, patience: float):
        self._patience = patience
        #: A decode step; 0 before the first has come back.
        self.step = 0.0
        #: Any step.
        self.any = 0.0
        self._arrival = self._came = float("-inf")
        self._launched: deque[tuple[int, float, int]] = deque()

    def arrived(self, now: float) -> None:
        """Somebody waits for a row from now on."""
        self._arrival = now

    def launched(self, plan: StepPlan, begun: float) -> None:
        """``plan`` is on its way; the host began with it at ``begun``."""
        repeat = plan.repeat if plan.kind == Kind.DECODE else 0
        self._launched.append((plan.step + plan.repeat - 1, begun, repeat))

    def retired(self, step: int, now: float) -> None:
        """A sub-step came back. A plan takes from the end of the one before it, or from its own launch if that was
        later, to its last sub-step."""
        last, begun, repeat = self._launched[0]
        if step < last:
            return
        self._launched.popleft()
        took = (now - max(begun, self._came)) / max(repeat, 1)
        self.any += (took - self.any) * (WEIGHT if self.any else 1.0)
        if repeat:
            self.step += (took - self.step) * (WEIGHT if self.step else 1.0)
        self._came = now

    def fit(self, now: float) -> int:
        """How many decode steps may be launched at once."""
        if not self._patience or not self.step or now - self._arrival < QUIET:
            return 1
        return int(min(max(self._patience / self.step, 1), REPEAT))
