"""What the masks of a grammar take, and whether the step loop may make them itself."""

#: Seconds from which one mask is dear. Of schemas in use the worst of a small vocabulary take 0.2 ms; of a large one
#: some take 0.5. On average none of them takes a tenth of a millisecond.
DEAR = 1e-3
DEAR_MEAN = 0.25e-3
#: Seconds that the masks of one step may take together, or this part of what a step takes, or as many times as long as
#: masks of schemas in use do, whichever is the most.
STEP = 1e-3
PART = 1 / 10
USUAL = 0.05e-3
#: Masks in a row that must be cheap before a dear grammar is a cheap one again; twice as many after each relapse, up to
#: the second, and half as many after so many masks in the loop that were cheap. One dear mask alone may be the doing of
#: the machine: what a virtual one is kept waiting for counts as the thread's own time.
GOOD = 16
MOST_GOOD = 1 << 14
FORGIVEN = 1024
#: What the newest mask counts in the average, and in the one that decides: of many rows each makes some in a moment in
#: which the machine is slow.
WEIGHT = 1 / 8
STEADY = 1 / 16


def budget(masks: int, step: float = 0.0) -> float:
    """Seconds that a step which takes ``step`` of them may spend on so many masks."""
    return max(STEP, PART * step, USUAL * masks)


def share(rows: int, step: float = 0.0) -> float:
    """Seconds that each of so many masks may take on average."""
    return min(DEAR_MEAN, budget(rows, step) / rows)


class Telling:
    """Whether a library tells what a grammar forces soon enough, one for all that follow the grammar: it is asked no
    more where that took long twice, and not very rarely."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since = FORGIVEN

    def quick(self, seconds: float) -> bool:
        """It was told in so many seconds. False: do not ask again."""
        if seconds <= DEAR:
            self._since += 1
            return True
        since, self._since = self._since, 0
        return since >= FORGIVEN


class Cost:
    """Of one grammar, whoever follows it. ``tried``: seconds that the dearest of its first masks took elsewhere,
    ``mean``: what they took on average (the first of all is made cold, so the dearest says nothing of the others),
    ``told``: in which what it forces was told there.

    ``dear``: its masks are made off the loop. ``guesses``: what it forces may be asked for, to be drafted. ``mean``:
    seconds of the last masks.
    """

    __slots__ = ("_good", "_most", "_need", "_usual", "dear", "guesses", "mean")

    def __init__(self, tried: float = 0.0, mean: float | None = None, told: float = 0.0):
        self.dear = tried > DEAR
        self.guesses = told <= DEAR
        self._need = GOOD
        self._good = 0
        self.mean = tried if mean is None else mean
        #: As ``mean``, but a dear mask counts as no more than that: it has its own consequences.
        self._usual = min(self.mean, DEAR)
        self._most = DEAR_MEAN

    def took(self, seconds: float, most: float | None = None) -> None:
        """A mask was made in so many seconds. ``most``: what they may take on average; None: as was said before."""
        if most is not None:
            self._most = most
        self.mean += (seconds - self.mean) * WEIGHT
        usual = self._usual = self._usual + (min(seconds, DEAR) - self._usual) * STEADY
        if seconds <= DEAR and usual <= self._most:
            self._good += 1
            if self.dear and self._good >= self._need:
                self.dear, self._good = False, 0
                self._need = min(2 * self._need, MOST_GOOD)
            elif self._good >= FORGIVEN and not self.dear:
                self._need, self._good = max(self._need // 2, GOOD), 0
            return
        self.dear, self._good = True, 0
