"""Text as it comes: equal to decoding the whole, wherever characters are cut."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from front.support import VOCAB, small
from octavo.front.detokenize import Detokenizer, WindowDetokenizer, detokenizer, split_utf8, tail
from octavo.front.tokenizers.base import Specials, Tokenizer

ids = st.lists(st.integers(0, VOCAB - 1), max_size=40)
#: Mostly ids of bytes from 0x80 on, so that characters are whole, cut and broken.
bytes_ids = st.lists(st.integers(4 + 0x20, 259) | st.integers(4 + 0xC0, 259), max_size=24)


def pieces_of(items, cuts):
    cuts = sorted(min(cut, len(items)) for cut in cuts)
    return [items[a:b] for a, b in zip([0, *cuts], [*cuts, len(items)], strict=True)]


@given(ids | bytes_ids, st.lists(st.integers(0, 40), max_size=10), st.booleans())
def test_pieces_add_up_to_the_whole(tokens, cuts, skip):
    tokenizer = small()
    text = Detokenizer(tokenizer, [], skip)
    told = "".join(text.push(piece) for piece in pieces_of(tokens, cuts)) + text.flush()
    assert told == tokenizer.decode(tokens, skip)
    assert told == tokenizer.backend.decode(tokens, skip_special_tokens=skip)


@given(st.text(max_size=30), st.integers(0, 200))
def test_a_character_begun_by_the_prompt_is_finished_in_the_answer(text, cut):
    tokenizer = small()
    tokens = [4 + byte for byte in text.encode()]
    cut = min(cut, len(tokens))
    answer = Detokenizer(tokenizer, tokens[:cut])
    prompt = split_utf8(bytes(token - 4 for token in tokens[:cut]))[0]
    assert prompt + "".join(answer.push([token]) for token in tokens[cut:]) + answer.flush() == text


def test_what_the_prompt_broke_is_not_shown_in_the_answer():
    tokenizer = small()
    prompt = [4 + 0xF0, 4 + 0x9F]
    assert tail(tokenizer, prompt) == b"\xf0\x9f"
    answer = Detokenizer(tokenizer, prompt)
    assert answer.push([4 + ord("a")]) + answer.push([4 + ord("b")]) + answer.flush() == "ab"
    silent = Detokenizer(tokenizer, prompt)
    assert silent.flush() == ""


def test_nothing_is_told_before_a_character_is_whole():
    tokenizer = small()
    text = Detokenizer(tokenizer, [])
    assert [text.push([4 + byte]) for byte in "é🙂".encode()] == ["", "é", "", "", "", "🙂"]
    assert text.flush() == ""


def sentencepiece() -> Tokenizer:
    pieces = ["<unk>", "<s>", "▁a", "b", "▁", *(f"<0x{byte:02X}>" for byte in range(256))]
    backend = Backend(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True, unk_token="<unk>")
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return Tokenizer(backend, Specials())


@given(st.text("ab é🙂", max_size=12))
def test_sentencepiece_with_bytes(text):
    tokenizer = sentencepiece()
    names = {"a": [4, 5 + ord("a")], "b": [3], " ": [4]}
    tokens = [id for char in text for id in names.get(char, [5 + byte for byte in char.encode()])]
    assert tokenizer.decode(tokens) == tokenizer.backend.decode(tokens)
    answer = detokenizer(tokenizer, [2])
    # An answer goes on behind the prompt: its first space stays.
    assert "".join(answer.push([token]) for token in tokens) == tokenizer.decode([2, *tokens])[1:]


def wordpiece(special: Sequence[str] = ()) -> Tokenizer:
    words = ["[UNK]", "un", "##believ", "##able", "story", ".", "é"]
    backend = Backend(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece(cleanup=False)
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(list(special))
    return Tokenizer(backend, Specials())


@given(st.lists(st.integers(0, 6), max_size=20))
def test_decoders_that_look_at_neighbours(tokens):
    tokenizer = wordpiece()
    assert tokenizer.pieces is None
    text = detokenizer(tokenizer, [])
    assert isinstance(text, WindowDetokenizer)
    assert "".join(text.push([token]) for token in tokens) + text.flush() == tokenizer.decode(tokens)


@pytest.mark.parametrize(("skip", "spaces", "text"), [
    (True, True, "un un"), (True, False, "un un"),
    (False, True, "un [A] [B] [A] un"), (False, False, "un [A][B][A] un"),
])  # fmt: skip
def test_spaces_between_special_tokens(skip, spaces, text):
    tokenizer = wordpiece(["[A]", "[B]"])
    ids = tokenizer.encode("un [A][B][A] un")
    assert len(ids) == 5
    found = detokenizer(tokenizer, [], skip, spaces)
    assert "".join(found.push([token]) for token in ids) + found.flush() == text


@pytest.mark.parametrize("data", [b"", b"a", b"\xc3", b"\xf0\x9f\x99", b"\xff", b"\xed\xa0\x80", b"a\xc3(b"])
def test_split_utf8_is_the_decoder_of_the_language(data):
    text, rest = split_utf8(data)
    assert text + rest.decode("utf-8", "replace") == data.decode("utf-8", "replace")
    assert len(rest) < 4
