"""Log-probabilities for people: the texts of chosen tokens add up, ranks and columns are what the arrays say."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from front.support import small
from octavo.front.detokenize import Detokenizer
from octavo.front.logprobs import LogprobReader
from octavo.outputs import Logprob
from octavo.wire.result import LogprobArrays


def arrays(rows, ranks=None):
    """Rows of (id, value) pairs; short rows are filled with -1."""
    width = max(len(row) for row in rows)
    ids = np.full((len(rows), width), -1, np.int32)
    values = np.zeros((len(rows), width), np.float32)
    for i, row in enumerate(rows):
        for j, (token, value) in enumerate(row):
            ids[i, j], values[i, j] = token, value
    return LogprobArrays(ids, values, np.asarray(ranks or [1] * len(rows), np.int32))


def test_chosen_first_then_the_most_likely():
    reader = LogprobReader(small(), [], 2)
    one = reader.read(arrays([[(70, -3.0), (71, -0.5), (70, -3.0)]], [5]))[0]
    assert one == {70: Logprob(-3.0, 5, "B"), 71: Logprob(-0.5, 1, "C")}
    assert list(one) == [70, 71]
    assert reader.cumulative == -3.0


def test_columns_behind_the_top_are_tokens_asked_for_by_id():
    reader = LogprobReader(small(), [], 1)
    one = reader.read(arrays([[(70, -0.5), (70, -0.5), (80, -9.0), (81, -8.0)]]))[0]
    assert [(token, entry.rank) for token, entry in one.items()] == [(70, 1), (80, None), (81, None)]


def test_unused_columns_are_left_out():
    reader = LogprobReader(small(), [], 2)
    rows = reader.read(arrays([[(70, -1.0), (71, -2.0), (72, -3.0)], [(73, -1.0)]]))
    assert [list(row) for row in rows] == [[70, 71, 72], [73]]


def test_only_the_kept_positions_count():
    reader = LogprobReader(small(), [], 0)
    assert len(reader.read(arrays([[(70, -1.0)], [(71, -2.0)], [(72, -4.0)]]), 2)) == 2
    assert reader.cumulative == -3.0


def test_without_a_tokenizer_tokens_have_no_text():
    reader = LogprobReader(None, [], 1)
    assert reader.read(arrays([[(7, -1.0), (8, -2.0)]]))[0][8] == Logprob(-2.0, 1, None)


@given(st.lists(st.integers(4, 259) | st.integers(4 + 0x80, 259), max_size=30))
def test_texts_of_chosen_tokens_add_up_to_the_answer(tokens):
    tokenizer = small()
    reader, text = LogprobReader(tokenizer, [], 0), Detokenizer(tokenizer, [])
    told = "".join(text.push([token]) for token in tokens)
    if tokens:
        rows = reader.read(arrays([[(token, -1.0)] for token in tokens]))
        assert "".join(row[token].decoded_token for row, token in zip(rows, tokens, strict=True)) == told


def test_alternatives_are_told_with_the_character_they_would_complete():
    tokenizer = small()
    smile = [4 + byte for byte in "🙂".encode()]
    other = 4 + "🙃".encode()[-1]
    reader = LogprobReader(tokenizer, smile[:3], 1)
    one = reader.read(arrays([[(smile[3], -1.0), (other, -2.0)]]))[0]
    assert [entry.decoded_token for entry in one.values()] == ["🙂", "🙃"]
