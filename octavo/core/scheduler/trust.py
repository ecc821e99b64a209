"""Trust: how often the drafts of a request were right, and how many are worth their time.

A step over n tokens takes about as long as n + ``FIXED`` of them would: some of it is the same for any n (the weights
are read). Let b rows run. A draft adds 1 to n. If it is said, which it is with the chance q, it saves one row's part of
a later step, 1 + FIXED / b. So it pays where q > b / (b + FIXED), and the k-th draft of a row has q = p^k, where p is
the chance of one behind drafts that were right.

A step with drafts takes ``WINDOWS`` tokens longer than one without, however few they are: all drafts of a step together
must be worth that.

Of who has said nothing yet nothing is known, and all that run may be new at once: many begin with few drafts, and may
have some more for each that was right.
"""

import math

#: Of a CPU: from steps of 1, 8 and 32 rows in ``benchmarks/cpu``, 7 to 24.
FIXED = 8
#: Of a CPU too: with few drafts among 32 rows a step took 4 to 7 ms more, a token being 1.25.
WINDOWS = 3
#: Right ones of as many that a request begins with.
PRIOR = 3.0
#: Drafts that all rows may try together at first, one each at least, and how many more each right one is good for.
FIRST, MORE = 16, 2
#: Part of what was heard that one step forgets, so that a request is asked again some time.
FORGETS = 1 / 256


class Trust:
    """Of one request."""

    __slots__ = ("_right", "_said", "_tried")

    def __init__(self) -> None:
        self._right = self._tried = PRIOR
        self._said = 0

    def most(self, rows: int, limit: int) -> int:
        """How many drafts pay, at most ``limit``, where so many rows run."""
        chance = self._right / self._tried
        if chance >= 1.0:
            return limit
        if chance <= 0.0:
            return 0
        return min(limit, int(math.log(rows / (rows + FIXED)) / math.log(chance)))

    def first(self, rows: int) -> int:
        """How many of them are tried, what has been right so far being known."""
        return max(1, FIRST // rows) + MORE * self._said

    def worth(self, rows: int, drafts: int) -> float:
        """What so many drafts are worth where so many rows run, in tokens that a step is shorter."""
        chance = self._right / self._tried
        said = drafts if chance >= 1.0 else chance * (1 - chance**drafts) / (1 - chance)
        return said * (1 + FIXED / rows) - drafts

    def passed(self) -> None:
        """A step in which no draft paid."""
        self._right += (PRIOR - self._right) * FORGETS
        self._tried += (PRIOR - self._tried) * FORGETS

    def heard(self, drafts: int, right: int) -> None:
        """Of so many drafts the first ``right`` were said; what stood behind a wrong one says nothing."""
        self._said += right
        self._right += right
        self._tried += min(right + 1, drafts)
