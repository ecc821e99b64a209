"""Steady: what stays as it is while the same rows only decode, so that such a step gathers nothing twice."""

import numpy as np

from octavo.core.scheduler.columns import RETIRED, RETIRED_BY, RETIRED_UNTOLD, Columns
from octavo.wire.arrays import NO_INTS, Bools, Ints


class Steady:
    """Of ``rows``, all that run, none of which has prompt left to compute or a flag. Good until a row comes or goes or
    gets a flag; plans that are made of it name ``rows`` itself, and that is how their results are known again.

    ``plans``: decode steps that may be planned before a row may be at its limit. ``steps``: tokens that each row may
    get before it may be at its limit; -1 where that has to be looked up. Masks and ``retired`` are as wide as the
    columns: adding to all of them costs less than gathering and scattering some.
    """

    __slots__ = (
        "client", "epochs", "every", "handles", "mask", "ones", "plans", "retired", "rows", "span", "steps", "stops",
        "true", "untold", "zeros",
    )  # fmt: skip

    def __init__(self, columns: Columns, rows: Ints):
        c, count = columns, len(rows)
        self.rows = rows
        self.epochs = c.epoch[rows]
        self.mask: Bools = np.zeros(len(c.epoch), np.bool_)
        self.mask[rows] = True
        self.ones, self.zeros, self.true = np.ones(count, np.int32), np.zeros(count, np.int32), np.ones(count, np.bool_)
        every = c.every[rows]
        #: How often the clients hear: 0 at the end, 1 at once; -1 where they differ.
        self.every = int(every[0]) if every[0] in (0, 1) and (every == every[0]).all() else -1
        self.span = RETIRED if self.every else RETIRED_UNTOLD
        self.retired = RETIRED_BY[: self.span.stop - self.span.start] * self.mask
        clients = c.client[rows]
        #: Whose they are; -1 where there are several.
        self.client = int(clients[0]) if (clients == clients[0]).all() else -1
        self.handles = c.handle[rows]
        stops = c.stops[:, rows]
        self.stops: Ints = stops[(stops >= 0).any(axis=1)]
        self.plans = int((c.limit[rows] - c.length[rows] - c.pending[rows]).min())
        self.steps = -1
        for column in (self.epochs, self.ones, self.zeros, self.true, self.handles):
            column.flags.writeable = False

    def left(self, columns: Columns) -> int:
        """``steps``, looked up."""
        if self.steps < 0:
            self.steps = int((columns.limit[self.rows] - columns.length[self.rows]).min()) - 1
        return self.steps

    def chosen(self, which: Bools) -> Ints:
        """Those of the rows for which a column is true."""
        return self.rows[which[self.rows]] if (which & self.mask).any() else NO_INTS
