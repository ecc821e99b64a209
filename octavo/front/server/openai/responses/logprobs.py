"""Log-probabilities of the tokens that made a response's text, picked from among all that the model said."""

from collections.abc import Sequence

from octavo.front.server.openai.schema import TokenLogprob


class Picker:
    """A parser takes markers out of the text and holds pieces back, so a token may show later than it came, or never:
    ``feed`` it the tokens as they come and the text that came out with them; it returns the tokens of that text."""

    def __init__(self) -> None:
        self._waiting: list[TokenLogprob] = []

    def feed(self, tokens: Sequence[TokenLogprob], text: str, other: bool) -> list[TokenLogprob]:
        """``other``: something that is no text came out too."""
        self._waiting += tokens
        if not text:
            if other:
                self._waiting.clear()
            return []
        start = "".join(token.token for token in self._waiting).rfind(text)
        if start < 0:  # a character of several tokens: theirs do not add up to it
            found, self._waiting = self._waiting, []
            return found
        found, rest, at = [], [], 0
        for token in self._waiting:
            end = at + len(token.token)
            if at >= start + len(text):
                rest.append(token)
            elif end > start:
                found.append(token)
            at = end
        self._waiting = rest
        return found
