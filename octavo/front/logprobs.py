"""Arrays of log-probabilities to what a caller sees: one dict a position, with the text of every token."""

from collections.abc import Sequence

from octavo.front.detokenize import split_utf8, tail
from octavo.front.tokenizers.base import Tokenizer
from octavo.outputs import Logprob, PositionLogprobs
from octavo.wire.result import LogprobArrays


class LogprobReader:
    """Turns positions one after another. ``top``: how many of the most likely tokens were asked for (-1 all); columns
    behind them are tokens asked for by id, whose rank is not known.

    A token may hold a part of a character. It is told with the character that it completes, and as "" where it
    completes none, so that the texts of the chosen tokens add up to the answer.
    """

    def __init__(self, tokenizer: Tokenizer | None, before: Sequence[int], top: int):
        self._tokenizer = tokenizer
        self._pending = tail(tokenizer, before) if tokenizer is not None else b""
        self._top = top
        self.cumulative = 0.0

    def read(self, arrays: LogprobArrays, most: int | None = None) -> list[PositionLogprobs]:
        """The first ``most`` positions of ``arrays`` (None: all): the chosen token first, then the most likely."""
        ids, values, ranks = arrays.ids[:most].tolist(), arrays.values[:most].tolist(), arrays.ranks[:most].tolist()
        out = []
        for row_ids, row_values, rank in zip(ids, values, ranks, strict=True):
            chosen = row_ids[0]
            position: PositionLogprobs = {chosen: Logprob(row_values[0], rank, self._text(chosen))}
            for column in range(1, len(row_ids)):
                token = row_ids[column]
                if token < 0 or token in position:
                    continue
                place = column if self._top < 0 or column <= self._top else None
                position[token] = Logprob(row_values[column], place, self._text(token))
            self.cumulative += row_values[0]
            self._advance(chosen)
            out.append(position)
        return out

    def _bytes(self, token: int) -> bytes:
        assert self._tokenizer is not None
        assert self._tokenizer.pieces is not None
        return self._tokenizer.pieces[token]

    def _text(self, token: int) -> str | None:
        if self._tokenizer is None:
            return None
        if self._tokenizer.pieces is None:
            return self._tokenizer.backend.decode([token], skip_special_tokens=False)
        return split_utf8(self._pending + self._bytes(token))[0]

    def _advance(self, token: int) -> None:
        if self._tokenizer is not None and self._tokenizer.pieces is not None:
            self._pending = split_utf8(self._pending + self._bytes(token))[1]
