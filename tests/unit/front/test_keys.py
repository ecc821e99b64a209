"""API keys: where they come from, and that nothing of a comparison shows which one was near."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import ConfigError
from octavo.front.server import keys
from octavo.front.server.keys import Keys, bearer, read_keys


@given(st.lists(st.text("ab", min_size=1, max_size=4), max_size=6), st.lists(st.binary(max_size=4), max_size=3))
def test_a_key_is_one_of_those_that_are_known(known, tokens):
    found = Keys(known)
    assert found.knows(*tokens) == any(token in {key.encode() for key in known} for token in tokens)
    assert bool(found) == bool(known)


@pytest.mark.parametrize("token", [b"first", b"third", b"none", b""])
def test_every_known_key_is_compared_whichever_fits(monkeypatch, token):
    compared = []
    found = Keys(["first", "second", "third"])
    monkeypatch.setattr(keys.hmac, "compare_digest", lambda one, other: compared.append(len(one)) or one == other)
    assert found.knows(token) == (token in (b"first", b"third"))
    assert compared == [32, 32, 32]  # hashes: their length says nothing of the key's


@pytest.mark.parametrize(
    ("header", "token"),
    [
        (b"Bearer x", b"x"),
        (b"bearer  x ", b"x"),
        (b"BEARER x y", b"x y"),
        (b"Bearer", b""),
        (b"", b""),
        (b"Basic x", b""),
        (b"Bearerx", b""),
        (b"x", b""),
    ],
)
def test_the_token_of_a_header(header, token):
    assert bearer(header) == token


def test_where_keys_come_from(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# those of the team\none\n\n  two words  \r\none\n", encoding="utf-8")
    assert read_keys(["given", "one"], str(file), "environment") == ("given", "one", "two words")
    assert read_keys(None, str(file), "environment") == ("one", "two words")
    assert read_keys(["given"], None, "environment") == ("given",)
    assert read_keys(None, None, "environment") == ("environment",)
    assert read_keys(None, None, None) == ()


@pytest.mark.parametrize("key", ["", " a9q", "a9q\n", "a9q\x00", "schlüssel", "x" * 5000, "\ud800"])
def test_keys_that_no_header_carries(key):
    with pytest.raises(ConfigError, match="key") as refused:
        read_keys(["fine", key], None, None)
    assert not key.strip() or key not in str(refused.value)


def test_files_without_keys(tmp_path):
    file = tmp_path / "keys"
    for data, words in ((b"\n# nothing\n", "holds no key"), (b"\xff\xfe", "not UTF-8"), (None, "No such file")):
        file.unlink() if data is None else file.write_bytes(data)
        with pytest.raises(ConfigError, match=words):
            read_keys(None, str(file), None)
    with pytest.raises(ConfigError, match="at most"):
        read_keys(["k"] * (keys.MAX_KEYS + 1), None, None)
