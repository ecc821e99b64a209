"""Stop strings across deltas: what may be told now, what must wait, where the answer ends."""

from collections.abc import Sequence


class Stop:
    """Watches a growing text. The answer ends where a stop string is *first complete*, reading character by character
    (of those complete at the same character, the longest counts), so it does not depend on how the text was cut.

    No more text is held back than the longest end of it that some stop string begins with. One Knuth-Morris-Pratt
    automaton a stop string: constant work a character, and no character is looked at twice.
    """

    __slots__ = ("_fails", "_firsts", "_held", "_include", "_states", "_stops", "matched")

    def __init__(self, stops: Sequence[str], include: bool = False):
        self._stops = sorted(set(stops), key=len, reverse=True)
        self._fails = [_failure(stop) for stop in self._stops]
        self._firsts = frozenset(stop[0] for stop in self._stops)
        self._states = [0] * len(self._stops)
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str, armed: bool = True) -> str:
        """The part of held and new text that can be told. After it ``matched`` is the stop string that ended the
        answer, or None. Not ``armed``: no stop string may end in this text (the answer is too short yet)."""
        if not self._held and self._firsts.isdisjoint(text):
            return text
        for at, char in enumerate(text):
            found = self._step(char)
            if found is not None and armed:
                told = self._held + text[: at + 1]
                self.matched, self._held = found, ""
                return told if self._include else told[: len(told) - len(found)]
        told = self._held + text
        keep = max(self._states)
        self._held = told[len(told) - keep :]
        return told[: len(told) - keep]

    def flush(self) -> str:
        """What was held back, once the answer has ended for another reason."""
        held, self._held = self._held, ""
        return held

    def _step(self, char: str) -> str | None:
        """Moves every automaton on by one character; the longest stop string that it completes."""
        found = None
        for i, stop in enumerate(self._stops):
            state, fail = self._states[i], self._fails[i]
            while state and stop[state] != char:
                state = fail[state - 1]
            if stop[state] == char:
                state += 1
                if state == len(stop):
                    found = found or stop
                    state = fail[state - 1]
            self._states[i] = state
        return found


def _failure(text: str) -> list[int]:
    """For each prefix of ``text`` the length of its longest proper prefix that is its suffix too."""
    table, state = [0] * len(text), 0
    for i in range(1, len(text)):
        while state and text[i] != text[state]:
            state = table[state - 1]
        state += text[i] == text[state]
        table[i] = state
    return table
