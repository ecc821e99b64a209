"""Ids to text as they come: a character may be cut anywhere, and what is told is never taken back.

``Detokenizer`` adds up bytes where tokens have bytes of their own: constant work a token. ``WindowDetokenizer`` is for
decoders that look at neighbours: it decodes a short window twice and tells the difference (the method of
text-generation-inference and vLLM).
"""

import codecs
from collections.abc import Sequence
from typing import Protocol

from octavo.front.tokenizers.base import Tokenizer

_LOST = "\ufffd"
#: Tokens before an answer that a window shows the decoder.
_WINDOW = 6


class Incremental(Protocol):
    """Text of a growing answer."""

    def push(self, ids: Sequence[int]) -> str:
        """What ``ids`` add; a character that is not whole yet stays inside."""

    def flush(self) -> str:
        """The rest at the end: U+FFFD for a character that was never finished."""


def detokenizer(
    tokenizer: Tokenizer, prompt: Sequence[int], skip_special_tokens: bool = True, spaces: bool = True
) -> Incremental:
    """For an answer that follows ``prompt``: a character that the prompt began is finished in the answer.

    ``spaces`` False: none between special tokens that are shown. Only decoders that look at neighbours put any there.
    """
    if tokenizer.pieces is None:
        return WindowDetokenizer(tokenizer, prompt, skip_special_tokens, spaces)
    return Detokenizer(tokenizer, prompt, skip_special_tokens)


class Marker:
    """Where in an answer's text its added tokens stand. ``marks``: (offset in characters from the front, id), in order,
    of those that were pushed; whoever reads them takes them out."""

    __slots__ = ("_added", "_inner", "_length", "_text_of", "marks")

    def __init__(self, inner: Incremental, tokenizer: Tokenizer):
        self._inner, self._added, self._text_of = inner, tokenizer.added_ids, tokenizer.token
        self._length = 0
        self.marks: list[tuple[int, int]] = []

    def push(self, ids: Sequence[int]) -> str:
        if self._added.isdisjoint(ids):
            text = self._inner.push(ids)
            self._length += len(text)
            return text
        return "".join([self._one(token) for token in ids])

    def _one(self, token: int) -> str:
        text = self._inner.push((token,))
        before, self._length = self._length, self._length + len(text)
        if token in self._added:
            # Its text is the last of what came: in front there may be a character that was never finished.
            self.marks.append((max(self._length - len(self._text_of(token) or ""), before), token))
        return text

    def flush(self) -> str:
        return self._inner.flush()


def split_utf8(data: bytes) -> tuple[str, bytes]:
    """The whole characters of ``data`` (U+FFFD for what can be none), and the bytes of one that may yet be whole."""
    text, used = codecs.utf_8_decode(data, "replace", False)
    return text, data[used:]


def tail(tokenizer: Tokenizer, ids: Sequence[int]) -> bytes:
    """Bytes of a character that ``ids`` begin and do not finish; at most three."""
    pieces, data = tokenizer.pieces, b""
    if pieces is None:
        return b""
    for token in reversed(ids[-4:]):
        data = pieces[token] + data
        if len(data) > 3:
            break
    for start in range(max(len(data) - 3, 0), len(data)):
        if data[start] >= 0xC0:
            return split_utf8(data[start:])[1]
    return b""


class Detokenizer:
    """Adds up bytes of tokens."""

    __slots__ = ("_pending", "_pieces", "_seed", "_skipped")

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], skip_special_tokens: bool = True):
        assert tokenizer.pieces is not None
        self._pieces = tokenizer.pieces
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._pending = tail(tokenizer, prompt)
        self._seed = bool(self._pending)

    def push(self, ids: Sequence[int]) -> str:
        pieces, skipped = self._pieces, self._skipped
        if len(ids) == 1:
            token = ids[0]
            data = b"" if token in skipped else pieces[token]
        else:
            data = b"".join([pieces[token] for token in ids if token not in skipped])
        if not data:
            return ""
        if self._pending:
            data = self._pending + data
        text, self._pending = split_utf8(data)
        return self._unseed(text)

    def flush(self) -> str:
        text, self._pending = self._pending.decode("utf-8", "replace"), b""
        return self._unseed(text)

    def _unseed(self, text: str) -> str:
        """What the prompt broke off is the prompt's fault: no U+FFFD of it in the answer."""
        if self._seed and text:
            self._seed = False
            return text.removeprefix(_LOST)
        return text


class WindowDetokenizer:
    """Decodes ids from ``_start`` with and without the newest, and tells what is longer."""

    __slots__ = ("_backend", "_bare", "_bare_before", "_ids", "_read", "_skip", "_start")

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int], skip_special_tokens: bool = True, spaces: bool = True
    ):
        self._backend = tokenizer.backend
        #: Tokens that are told as they are behind another of them.
        self._bare = frozenset() if spaces or skip_special_tokens else tokenizer.added_ids
        self._bare_before = False
        self._ids = list(prompt[-_WINDOW:])
        self._start, self._read = 0, len(self._ids)
        self._skip = skip_special_tokens

    def push(self, ids: Sequence[int]) -> str:
        return "".join([self._one(token) for token in ids])

    def _one(self, token: int) -> str:
        self._ids.append(token)
        bare, behind = token in self._bare, self._bare_before
        self._bare_before = bare
        before, after = self._decode(self._read), self._decode(len(self._ids))
        if len(after) <= len(before) or after.endswith(_LOST):
            return ""
        del self._ids[: self._start]
        self._start, self._read = self._read - self._start, len(self._ids)
        if bare and behind:
            return self._backend.id_to_token(token) or ""
        return after[len(before) :]

    def flush(self) -> str:
        before, after = self._decode(self._read), self._decode(len(self._ids))
        self._read = len(self._ids)
        return after[len(before) :]

    def _decode(self, end: int) -> str:
        return self._backend.decode(self._ids[self._start : end], skip_special_tokens=self._skip)
