"""What bytes a token stands for, read from the tokenizer's decoder.

Where a decoder treats every token alike and joins the results (byte-level BPE, SentencePiece with byte fallback,
Metaspace), text is the UTF-8 decoding of the tokens' bytes put together. Decoding then needs no window over earlier
tokens, a character cut anywhere costs nothing, and grammars can be compiled from the same bytes.
"""

import json
import re
from collections.abc import Callable
from typing import Any

#: One token's text -> its bytes, or still its text for the next step.
Step = Callable[[str | bytes], str | bytes]
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte: character -> byte.

    Source: ``bytes_to_unicode`` of https://github.com/openai/gpt-2/blob/master/src/encoder.py.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(plain)]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}


_ALPHABET = byte_alphabet()


def _byte_level(token: str | bytes) -> str | bytes:
    if isinstance(token, bytes):
        return token
    try:
        return bytes([_ALPHABET[char] for char in token])
    except KeyError:
        return token.encode()


def _byte_fallback(token: str | bytes) -> str | bytes:
    found = _BYTE.fullmatch(token) if isinstance(token, str) else None
    return bytes([int(found[1], 16)]) if found else token


def _replace(old: str, new: str) -> Step:
    return lambda token: token.replace(old, new) if isinstance(token, str) else token


class Pieces:
    """Bytes of every token, found on first use. ``strip``: spaces that decoding takes from the front of a text."""

    def __init__(self, steps: list[Step], strip: int, text_of: Callable[[int], str | None]):
        self._steps = steps
        self._text_of = text_of
        self._known: dict[int, bytes] = {}
        self.strip = strip

    def __getitem__(self, token: int) -> bytes:
        """The bytes of id ``token``; empty where the tokenizer has no such id."""
        found = self._known.get(token)
        if found is None:
            value: str | bytes = self._text_of(token) or ""
            for step in self._steps:
                value = step(value)
            found = self._known[token] = value.encode() if isinstance(value, str) else value
        return found


def pieces(decoder: Any, text_of: Callable[[int], str | None]) -> Pieces | None:
    """The bytes of tokens under ``decoder`` (of the ``tokenizers`` library); None where they depend on neighbours."""
    if decoder is None:
        return None
    spec = json.loads(decoder.__getstate__())
    steps: list[Step] = []
    strip = 0
    for part in spec["decoders"] if spec["type"] == "Sequence" else [spec]:
        kind = part["type"]
        if kind == "ByteLevel":
            steps.append(_byte_level)
        elif kind == "ByteFallback":
            steps.append(_byte_fallback)
        elif kind == "Replace" and "String" in part["pattern"]:
            steps.append(_replace(part["pattern"]["String"], part["content"]))
        elif kind == "Metaspace":
            steps.append(_replace(part["replacement"], " "))
            strip = max(strip, int(part.get("prepend_scheme", "always") != "never"))
        elif kind == "Strip" and part["content"] == " " and not part["stop"]:
            strip = max(strip, part["start"])
        elif kind != "Fuse":
            return None
    return Pieces(steps, strip, text_of)
