"""Vocabulary: what core and device may know of the tokenizer, as data."""

from msgspec import Struct


class Vocabulary(Struct, frozen=True, array_like=True, gc=False):
    """``pieces[i]``: the bytes of id i (empty where there is none). ``special``: ids that are no text.

    ``size`` counts the tokenizer's ids; the model's own logit width may be larger (padding) and is ``Hello.vocab``.
    """

    size: int
    pieces: tuple[bytes, ...] = ()
    special: tuple[int, ...] = ()
    eos: tuple[int, ...] = ()
