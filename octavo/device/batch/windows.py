"""Windows: the logit rows of a step in which rows have drafts to verify."""

from dataclasses import dataclass

import numpy as np

from octavo.wire.arrays import Ints
from octavo.wire.plan import StepPlan


@dataclass(frozen=True, eq=False, slots=True)
class Windows:
    """Of S rows that sample, in the plan's order; W is the most logit rows of one of them.

    owner   int64[N]     which of the S rows a logit row is of
    ahead   int32[N]     drafts of its row before a logit row; ``behind``: those behind it
    at      int64[S, W]  logit rows of each row; 0 where there are fewer
    drafts  int64[S, W]  what a draw at that place must be for the next place to count; -1 where nothing follows
    """

    owner: np.ndarray
    ahead: Ints
    behind: Ints
    at: np.ndarray
    drafts: np.ndarray

    @staticmethod
    def of(plan: StepPlan) -> "Windows | None":
        """None where no row has drafts."""
        if not len(plan.draft_tokens):
            return None
        counts = plan.drafts[plan.samples]
        widths = 1 + counts
        first = np.cumsum(widths) - widths
        owner = np.repeat(np.arange(len(counts)), widths)
        ahead = (np.arange(len(owner)) - first[owner]).astype(np.int32)
        places = np.arange(int(widths.max()))
        there = places < widths[:, None]
        drafts = np.full(there.shape, -1, np.int64)
        drafts[places < counts[:, None]] = plan.draft_tokens
        return Windows(owner, ahead, counts[owner] - ahead, np.where(there, first[:, None] + places, 0), drafts)

    def of_rows(self, which: np.ndarray) -> np.ndarray:
        """The logit rows of these of the S rows, in order."""
        return np.concatenate([np.flatnonzero(self.owner == one) for one in which.tolist()])
