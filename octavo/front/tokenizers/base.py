"""Tokenizer: text to ids and back, and what the engine must know of a vocabulary."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import tokenizers

from octavo.errors import BadRequest, ConfigError
from octavo.front.tokenizers.pieces import Pieces, pieces
from octavo.wire.vocabulary import Vocabulary

#: Characters from which a text is worth the way through the thread pool.
_LONG = 8192


@dataclass(frozen=True, kw_only=True)
class Specials:
    """What stands beside the tokenizer proper. ``names``: bos_token, eos_token, ... -> text, as templates know them.

    ``eos``: ids that end an answer. ``add_bos``: whether a prompt begins with ``bos``; None leaves it to the tokenizer.
    ``templates``: chat templates by name; the usual one is "default".
    """

    names: Mapping[str, str] = field(default_factory=dict)
    eos: tuple[int, ...] = ()
    add_bos: bool | None = None
    templates: Mapping[str, str] = field(default_factory=dict)


class Tokenizer:
    """Wraps ``tokenizers.Tokenizer``. Every method may be called from any thread.

    ``tokens``: every token by id, where the loader has them at hand: asking the library for all is slow.
    """

    def __init__(self, backend: tokenizers.Tokenizer, specials: Specials, tokens: Sequence[str] | None = None):
        self.backend = backend
        self._tokens = tokens
        self.specials = specials
        self.size = backend.get_vocab_size(with_added_tokens=True)
        added = backend.get_added_tokens_decoder()
        self.added_ids = frozenset(added)
        self.special_ids = frozenset(token for token, what in added.items() if what.special)
        self.bos = self._id("bos_token")
        self.eos = specials.eos
        self._bos_by_itself = self.bos is not None and backend.encode("").ids[:1] == [self.bos]

    def _id(self, name: str) -> int | None:
        text = self.specials.names.get(name)
        return None if text is None else self.backend.token_to_id(text)

    @property
    def chat_template(self) -> str | None:
        """The model's usual chat template; None where it has none."""
        return self.specials.templates.get("default")

    @property
    def add_bos(self) -> bool:
        """Whether ``encode`` puts the beginning-of-sequence token before a prompt."""
        wish = self.specials.add_bos
        return self._bos_by_itself if wish is None else wish and self.bos is not None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of ``text``. Raises ``BadRequest`` where it is not Unicode text (a lone surrogate)."""
        check_text(text)
        if len(text) > _LONG:
            # Without offsets: half the time of ``encode``, but by way of the library's thread pool.
            found = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]
        else:
            found = self.backend.encode(text, add_special_tokens=add_special_tokens)
        return self._finish(found.ids, add_special_tokens)

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """``encode`` of many texts, on all cores."""
        for text in texts:
            check_text(text)
        found = self.backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [self._finish(one.ids, add_special_tokens) for one in found]

    def _finish(self, ids: list[int], add_special_tokens: bool) -> list[int]:
        if add_special_tokens and self.add_bos != self._bos_by_itself:
            assert self.bos is not None
            return [self.bos, *ids] if self.add_bos else ids[1:]
        return ids

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Text of ``ids``; bytes that are no UTF-8 become U+FFFD. Raises ``BadRequest`` for an id that is none."""
        ids = list(ids)
        for token in ids:
            if not 0 <= token < self.id_bound:
                raise BadRequest(f"token id {token} is out of the vocabulary (0 to {self.id_bound - 1})", "tokens")
        if self.pieces is None:
            return self.backend.decode(ids, skip_special_tokens=skip_special_tokens)
        skipped = self.special_ids if skip_special_tokens else frozenset()
        text = b"".join([self.pieces[token] for token in ids if token not in skipped]).decode("utf-8", "replace")
        for _ in range(self.pieces.strip):
            text = text.removeprefix(" ")
        return text

    @cached_property
    def pieces(self) -> Pieces | None:
        """Bytes of every id; None where the decoder looks at a token's neighbours."""
        return pieces(self.backend.decoder, self.backend.id_to_token)

    @cached_property
    def id_bound(self) -> int:
        """One past the highest id; more than ``size`` where a vocabulary has holes."""
        if self._tokens is not None:
            return len(self._tokens)
        return max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @cached_property
    def longest(self) -> int:
        """Characters of the longest token as it is written in the vocabulary: no token covers more of a text."""
        return max(map(len, self._tokens or self.backend.get_vocab(with_added_tokens=True)), default=1)

    def token(self, token: int) -> str | None:
        """The id's token as the vocabulary writes it ("Ġthe"); None where there is no such id."""
        return self.backend.id_to_token(token)

    def id(self, token: str) -> int | None:
        """The id of a token written as the vocabulary writes it."""
        return self.backend.token_to_id(token)

    def vocabulary(self) -> Vocabulary:
        """The bytes of every id, for grammars."""
        bound = self.id_bound
        if self.pieces is not None:
            table = tuple(self.pieces[token] for token in range(bound))
        else:
            table = tuple(self.backend.decode([token]).encode() for token in range(bound))
        return Vocabulary(bound, table, tuple(sorted(self.special_ids)), self.eos)


def check_text(text: str, param: str = "prompt") -> None:
    """Raises ``BadRequest`` where ``text`` holds a lone surrogate: half of a UTF-16 pair, which is no character."""
    if not isinstance(text, str):
        raise BadRequest(f"{param} must be text, got {type(text).__name__}", param)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(
            f"{param} holds a lone surrogate (U+{ord(text[error.start]):04X}) at character {error.start}, "
            "which is not Unicode text",
            param,
        ) from None


def load(path: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of a model: a directory with tokenizer.json, or a GGUF file.

    Raises ``ConfigError`` (``CheckpointError`` for a broken file) in one sentence that names the file.
    """
    path = os.fspath(path)
    if os.path.isdir(path):
        from octavo.front.tokenizers import hf

        return hf.load(path)
    if os.path.isfile(path):
        from octavo.front.tokenizers import gguf

        return gguf.load(path)
    raise ConfigError(f"tokenizer {path!r}: there is no such directory or file")
