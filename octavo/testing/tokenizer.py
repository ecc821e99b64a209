"""A small real tokenizer for tests: byte-level BPE with merges, special tokens and a chat template, as a directory.

    python -m octavo.testing.tokenizer FOLDER SIZE

writes one with as many tokens and merges as a real model's, for benchmarks of a model that has only a config.json.
"""

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from octavo.front.tokenizers.pieces import byte_alphabet

BOS, EOS, TURN, TURN_END = "<|begin|>", "<|end|>", "<|turn|>", "<|turn_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|turn|>' + message['role'] + '\n' + message['content'] + '<|turn_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|turn|>assistant\n' }}{% endif %}"
)
#: Characters of a made-up word.
_LONGEST_WORD = 12
#: Merges that make tokens of several bytes, of a cut "é" and of a cut emoji among them.
_WORDS = (" the", " cat", " sat", "the", "ing", " a", "er", "on", "é", "日", "本", "🙂", "\n\n")


def byte_level_tokenizer(
    size: int | None = None, specials: Sequence[str] = (), added: Sequence[str] = (), merged: bool = False
) -> Tokenizer:
    """256 bytes, a few merges and four special tokens; with ``size``, filler tokens up to that many ids.

    ``merged``: what fills up are no fillers but made-up words, each a merge of two shorter tokens.

    Ids 0 to 3 are the special tokens, 4 to 259 the bytes. ``specials`` are more special tokens, ``added`` tokens of
    one piece that are not special (as some models have their markers): their ids follow the merges.
    """
    letters = {chr_: i for i, chr_ in enumerate(_alphabet())}
    vocab = {token: i for i, token in enumerate((BOS, EOS, TURN, TURN_END))}
    vocab |= {letter: i + 4 for letter, i in letters.items()}
    merges: list[tuple[str, str]] = []
    for word in _WORDS:
        parts = [_alphabet()[byte] for byte in word.encode()]
        while len(parts) > 1:
            pair = (parts[0], parts[1])
            if pair not in merges:
                merges.append(pair)
                vocab.setdefault("".join(pair), len(vocab))
            parts[:2] = ["".join(pair)]
    for text in (*specials, *added):
        vocab.setdefault(text, len(vocab))
    if size is not None:
        if size < len(vocab):
            raise ValueError(f"size must be at least {len(vocab)}, got {size}")
        if merged:
            merges += _words(vocab, size)
        for i in range(len(vocab), size):
            vocab[f"<filler {i}>"] = i
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in (BOS, EOS, TURN, TURN_END, *specials)]
    )
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in added])
    return tokenizer


def _words(vocab: dict[str, int], size: int) -> list[tuple[str, str]]:
    """Add made-up words until ``vocab`` has ``size`` tokens, always the same ones; the merges that make them."""
    draw, merges = random.Random(0), []
    parts = [letter for letter in vocab if len(letter) == 1 and letter.isalpha() and letter.isascii()]
    starts = [*parts, *(_alphabet()[ord(" ")] + letter for letter in parts)]
    for start in starts[len(parts) :]:
        if start not in vocab and len(vocab) < size:
            vocab[start] = len(vocab)
            merges.append((start[0], start[1]))
    while len(vocab) < size:
        left, right = draw.choice(starts), draw.choice(parts)
        word = left + right
        if len(word) <= _LONGEST_WORD and word not in vocab:
            vocab[word] = len(vocab)
            merges.append((left, right))
            starts.append(word)
            if word.isascii() and len(word) <= 3:
                parts.append(word)
    return merges


def write(
    folder: str | Path,
    size: int | None = None,
    chat_template: str | None = CHAT_TEMPLATE,
    specials: Sequence[str] = (),
    added: Sequence[str] = (),
    merged: bool = False,
    **more: Any,
) -> Path:
    """Write tokenizer.json and tokenizer_config.json into ``folder`` (made where it is not there). ``more`` are keys of
    the latter."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    byte_level_tokenizer(size, specials, added, merged).save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": EOS, "add_bos_token": False}
    config |= more
    if chat_template is not None:
        config["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    return folder


def _alphabet() -> list[str]:
    """GPT-2's stand-in character for each byte."""
    table = {byte: char for char, byte in byte_alphabet().items()}
    return [table[byte] for byte in range(256)]


if __name__ == "__main__":
    write(sys.argv[1], int(sys.argv[2]), merged=True)
