"""Stop strings: the same end however the text is cut, and no more held back than must be."""

from hypothesis import given
from hypothesis import strategies as st

from octavo.front.stop import Stop

letters = st.text("ab-", max_size=24)
stops = st.lists(st.text("ab-", min_size=1, max_size=5), min_size=1, max_size=4)


@st.composite
def cut_texts(draw):
    """A text in pieces."""
    text = draw(letters)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def reference(text: str, stops: list[str], include: bool, floor: int = 0) -> tuple[str, str | None]:
    """The text and the stop string, found character by character. No stop string ends in the first ``floor``."""
    for end in range(floor + 1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end if include else end - len(stop)], stop
    return text, None


@given(cut_texts(), stops, st.booleans(), st.integers(0, 8))
def test_same_end_however_it_is_cut(pieces, stops, include, unarmed):
    stop, told = Stop(stops, include), ""
    for i, piece in enumerate(pieces):
        told += stop.feed(piece, armed=i >= unarmed)
        if stop.matched is not None:
            break
    else:
        told += stop.flush()
    floor = len("".join(pieces[:unarmed]))
    assert (told, stop.matched) == reference("".join(pieces), stops, include, floor)


@given(cut_texts(), stops)
def test_holds_back_only_what_some_stop_string_begins_with(pieces, stops):
    stop, told, text = Stop(stops), "", ""
    for piece in pieces:
        told += stop.feed(piece)
        text += piece
        if stop.matched is not None:
            return
        held = text[len(told) :]
        assert told + held == text
        assert not held or any(other.startswith(held) for other in stops)


def test_a_long_stop_string_costs_no_memory_of_its_square():
    stop = Stop(["a" * 4096] * 64)
    assert stop.feed("b" + "a" * 4095) == "b"
    assert stop.feed("b") == "a" * 4095 + "b"
    assert stop.matched is None
