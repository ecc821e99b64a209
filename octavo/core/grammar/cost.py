"""What the masks of a grammar take, and whether the step loop may make them itself."""

#: Seconds from which one mask is dear. Of schemas in use the worst of a small vocabulary take 0.2 ms; of a large one
#: some take 0.5. On average none of them takes a tenth of a millisecond.
DEAR = 1e-3
DEAR_MEAN = 0.25e-3
#: Seconds that the masks of one step may take together, or as many times as long as masks of schemas in use do,
#: whichever is more.
STEP = 1e-3
USUAL = 0.1e-3
#: Masks in a row that must be cheap before a dear grammar is a cheap one again; twice as many after each relapse, up to
#: the second.
GOOD = 64
MOST_GOOD = 1 << 14
#: What the newest mask counts in the average.
WEIGHT = 1 / 8


def budget(rows: int) -> float:
    """Seconds that one step may spend on the masks of so many rows."""
    return max(STEP, USUAL * rows)


def share(rows: int) -> float:
    """Seconds that each of so many masks may take on average."""
    return min(DEAR_MEAN, budget(rows) / rows)


class Cost:
    """Of one grammar, whoever follows it. ``tried``: seconds that the dearest of its first masks took elsewhere.

    ``dear``: its masks are made off the loop. ``guesses``: what it forces is told soon enough to be drafted. ``mean``:
    seconds of the last masks.
    """

    __slots__ = ("_good", "_need", "dear", "guesses", "mean")

    def __init__(self, tried: float = 0.0, guesses: bool = True):
        self.dear = tried > DEAR
        self.guesses = guesses
        self._need = GOOD
        self._good = 0
        self.mean = tried

    def took(self, seconds: float, most: float = DEAR_MEAN) -> None:
        """A mask was made in so many seconds. ``most``: what they may take on average."""
        mean = self.mean = self.mean + (seconds - self.mean) * WEIGHT
        if seconds <= DEAR and mean <= most:
            if self.dear:
                self._good += 1
                self.dear = self._good < self._need
            return
        if not self.dear and self._good:
            self._need = min(2 * self._need, MOST_GOOD)
        self.dear, self._good = True, 0

    def guessed(self, seconds: float) -> None:
        """What it forces was told in so many seconds."""
        if seconds > DEAR:
            self.guesses = False
