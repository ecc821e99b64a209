"""Tokenizers from directories and from GGUF files; the GGUF ones are written here, a few tokens each."""

import json
from pathlib import Path

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import processors

from front.support import VOCAB, small
from octavo.config.checkpoint import embedded
from octavo.errors import BadRequest, CheckpointError, ConfigError
from octavo.front.tokenizers.base import load
from octavo.front.tokenizers.pieces import byte_alphabet
from octavo.front.tokenizers.splits import KINDS
from octavo.testing import tokenizer as tiny

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)

texts = st.text(max_size=40).filter(lambda text: not any("\ud800" <= char <= "\udfff" for char in text))


# -- directories --


@given(texts)
def test_round_trip(text):
    tokenizer = small()
    for ids in (tokenizer.encode(text), *tokenizer.encode_batch([text])):
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_long_texts_go_another_way_to_the_same_ids():
    text = "the cat sat on é🙂 " * 1000
    assert small().encode(text) == small().backend.encode(text).ids


def test_special_tokens():
    tokenizer = small()
    ids = tokenizer.encode("<|turn|>the<|turn_end|>")
    assert (ids[0], ids[-1], tokenizer.bos, tokenizer.eos) == (2, 3, 0, (1,))
    assert (tokenizer.decode(ids), tokenizer.decode(ids, False)) == ("the", "<|turn|>the<|turn_end|>")
    assert tokenizer.special_ids == {0, 1, 2, 3}
    assert tokenizer.token(tokenizer.id("Ġcat")) == "Ġcat"


def test_a_lone_surrogate_is_no_text():
    with pytest.raises(BadRequest, match=r"U\+D83D"):
        small().encode("a\ud83d")


def test_an_id_that_is_none():
    for token in (-1, VOCAB, 2**63):
        with pytest.raises(BadRequest, match="out of the vocabulary"):
            small().decode([token])


def test_the_vocabulary_is_bytes():
    vocabulary = small().vocabulary()
    assert (vocabulary.size, len(vocabulary.pieces), vocabulary.eos) == (VOCAB, VOCAB, (1,))
    assert vocabulary.pieces[4:260] == tuple(bytes([byte]) for byte in range(256))
    assert vocabulary.pieces[small().id("Ġcat")] == b" cat"
    assert sorted(byte_alphabet().values()) == list(range(256))


def edit(folder: Path, name: str, **changes) -> None:
    file = folder / name
    file.write_text(json.dumps((json.loads(file.read_text()) if file.exists() else {}) | changes))


def test_ends_come_from_the_generation_config_too(tmp_path):
    edit(tiny.write(tmp_path), "generation_config.json", eos_token_id=[3, 1])
    assert load(tmp_path).eos == (3, 1)
    edit(tmp_path, "tokenizer_config.json", eos_token=None)
    edit(tmp_path, "generation_config.json", eos_token_id=None)
    edit(tmp_path, "config.json", eos_token_id=2)
    assert load(tmp_path).eos == (2,)


def test_the_beginning_comes_once_as_the_config_says(tmp_path):
    ids = load(tiny.write(tmp_path)).encode("the")
    edit(tmp_path, "tokenizer_config.json", add_bos_token=True)
    assert load(tmp_path).encode("the") == [0, *ids]
    assert load(tmp_path).encode_batch(["the"]) == [[0, *ids]]
    assert load(tmp_path).encode("the", add_special_tokens=False) == ids
    backend = Backend.from_file(str(tmp_path / "tokenizer.json"))
    backend.post_processor = processors.TemplateProcessing(f"{tiny.BOS} $A", None, [(tiny.BOS, 0)])
    backend.save(str(tmp_path / "tokenizer.json"))
    assert load(tmp_path).encode("the") == [0, *ids]
    edit(tmp_path, "tokenizer_config.json", add_bos_token=False)
    assert load(tmp_path).encode("the") == ids
    edit(tmp_path, "tokenizer_config.json", add_bos_token=None)
    assert load(tmp_path).encode("the") == [0, *ids]


def test_truncation_and_padding_of_the_file_are_dropped(tmp_path):
    tiny.write(tmp_path)
    backend = Backend.from_file(str(tmp_path / "tokenizer.json"))
    backend.enable_truncation(3)
    backend.enable_padding(length=50)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert load(tmp_path).encode("abcdefgh") == small().encode("abcdefgh")


def test_tokens_that_only_the_config_knows_are_added(tmp_path):
    tiny.write(tmp_path)
    edit(tmp_path, "tokenizer_config.json", added_tokens_decoder={"900": {"content": "<|new|>", "special": True}})
    tokenizer = load(tmp_path)
    assert tokenizer.encode("<|new|>") == [tokenizer.id("<|new|>")]
    assert tokenizer.decode(tokenizer.encode("a<|new|>")) == "a"


def test_where_templates_come_from(tmp_path):
    tiny.write(tmp_path, chat_template=None)
    assert load(tmp_path).chat_template is None
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    edit(tmp_path, "tokenizer_config.json", chat_template=named)
    assert load(tmp_path).specials.templates == {"default": "a", "tool_use": "b"}
    (tmp_path / "chat_template.jinja").write_text("c")
    assert load(tmp_path).chat_template == "c"


def test_what_is_wrong_with_a_directory_is_said(tmp_path):
    with pytest.raises(ConfigError, match="no such directory or file"):
        load(tmp_path / "nothing")
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json"):
        load(tmp_path)
    (tmp_path / "tokenizer.model").touch()
    with pytest.raises(ConfigError, match=r"it has tokenizer\.model"):
        load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is no tokenizer"):
        load(tmp_path)
    tiny.write(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json is not JSON"):
        load(tmp_path)


# -- GGUF files --


def write_gguf(path: Path, model: str, tokens, types=None, **more) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    writer.add_token_types(types or [NORMAL] * len(tokens))
    for name, value in more.items():
        key = f"tokenizer.{name}" if name.startswith("chat_template") else f"tokenizer.ggml.{name}"
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


LETTERS = sorted(byte_alphabet(), key=byte_alphabet().get)
BYTE_LEVEL = ["<|end|>", *LETTERS, "th", "the", "Ġa", "12", "<tool>"]
MERGES = ["t h", "th e", "Ġ a", "1 2"]
TYPES = [CONTROL] + [NORMAL] * 260 + [USER]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_split_covers_the_whole_text(tmp_path, kind):
    path = write_gguf(tmp_path / "a.gguf", "gpt2", BYTE_LEVEL, TYPES, merges=MERGES, pre=kind, eos_token_id=0)
    tokenizer = load(path)
    for text in ("the cat's 1234 é\n\n  x\t.!", " \n a", "日本語 and 한국어 <tool> ok", "'LL it's I'D", "   ", "ώΐΊ"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_byte_level_file(tmp_path):
    more = {"merges": MERGES, "pre": "smollm", "eos_token_id": 0, "eot_token_id": 1, "chat_template": "hello"}
    tokenizer = load(write_gguf(tmp_path / "a.gguf", "gpt2", BYTE_LEVEL, TYPES, **more))
    the, a, tool = (BYTE_LEVEL.index(token) for token in ("the", "Ġa", "<tool>"))
    assert tokenizer.encode("the a<tool>") == [the, a, tool]
    # One digit a word: 1 and 2 are never merged.
    assert tokenizer.encode("12") == [BYTE_LEVEL.index("1"), BYTE_LEVEL.index("2")]
    assert (tokenizer.eos, tokenizer.chat_template, tokenizer.add_bos) == ((0, 1), "hello", False)
    assert (tokenizer.decode([0, the, tool]), tokenizer.decode([0, the], False)) == ("the<tool>", "<|end|>the")
    assert tokenizer.specials.names == {"eos_token": "<|end|>"}


def test_ignored_merges_make_a_word_that_is_a_token_one(tmp_path):
    tokens = [*BYTE_LEVEL, "xyz"]
    for kind, count in (("llama-bpe", 1), ("qwen2", 3)):
        path = write_gguf(tmp_path / f"{kind}.gguf", "gpt2", tokens, [*TYPES, NORMAL], merges=MERGES, pre=kind)
        assert len(load(path).encode("xyz")) == count


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPM = ["<unk>", "<s>", "</s>", *BYTES, "▁", "a", "b", "c", "ab", "▁ab", "bc", "▁a"]
SPM_TYPES = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * 8
SCORES = [0.0] * 260 + [-1.0, -1.0, -1.0, -3.0, -4.0, -2.0, -5.0]


def spm(path, **more):
    return load(
        write_gguf(
            path, "llama", SPM, SPM_TYPES, scores=SCORES, bos_token_id=1, eos_token_id=2, unknown_token_id=0, **more
        )
    )


def test_a_sentencepiece_file_merges_by_score(tmp_path):
    tokenizer = spm(tmp_path / "a.gguf")
    words = [tokenizer.token(token) for token in tokenizer.encode("abc ab", add_special_tokens=False)]
    # "bc" has the best score, then "ab", then "▁ab", which needs "ab".
    assert words == ["▁a", "bc", "▁ab"]
    assert tokenizer.encode("ab")[0] == 1
    assert tokenizer.decode(tokenizer.encode("ab é 🙂")) == "ab é 🙂"
    assert tokenizer.encode("</s>a", add_special_tokens=False) == [2, SPM.index("▁a")]


def test_a_sentencepiece_file_may_have_no_space_before(tmp_path):
    tokenizer = spm(tmp_path / "a.gguf", add_space_prefix=False, add_bos_token=False)
    assert tokenizer.encode("ab") == [SPM.index("ab")]
    assert tokenizer.decode(tokenizer.encode(" ab")) == " ab"


def test_what_is_wrong_with_a_file_is_said(tmp_path):
    with pytest.raises(
        ConfigError, match=r"pre-tokenizer 'qwen3' is not known \(did you mean 'qwen35'\?\); known: default"
    ):
        load(write_gguf(tmp_path / "a.gguf", "gpt2", BYTE_LEVEL, TYPES, merges=MERGES, pre="qwen3"))
    with pytest.raises(ConfigError, match="tokenizer model 'bert' is not supported; supported: gpt2, llama"):
        load(write_gguf(tmp_path / "b.gguf", "bert", BYTE_LEVEL))
    with pytest.raises(CheckpointError, match=r"no list tokenizer\.ggml\.merges"):
        load(write_gguf(tmp_path / "c.gguf", "gpt2", BYTE_LEVEL, TYPES, pre="smollm"))
    with pytest.raises(CheckpointError, match="vocabulary and merges do not fit"):
        load(write_gguf(tmp_path / "d.gguf", "gpt2", BYTE_LEVEL, TYPES, merges=["q q"], pre="smollm"))
    with pytest.raises(CheckpointError, match="which is not two tokens"):
        load(write_gguf(tmp_path / "e.gguf", "gpt2", BYTE_LEVEL, TYPES, merges=["q"], pre="smollm"))
    with pytest.raises(CheckpointError, match="scores has 1 entries"):
        load(write_gguf(tmp_path / "f.gguf", "llama", SPM, SPM_TYPES, scores=[0.5]))


@pytest.mark.model
def test_the_embedded_model():
    tokenizer = load(embedded())
    assert tokenizer.encode("The capital of France is") == [504, 3575, 282, 4649, 314]
    assert tokenizer.decode([7042, 30, 198, 198, 504, 2988]) == " Paris.\n\nThe answer"
    assert (tokenizer.eos, tokenizer.add_bos, tokenizer.size) == ((2,), False, 49152)
    text = "12 é 🙂 日本\n\n  x"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert "<|im_start|>" in tokenizer.chat_template


@pytest.mark.parametrize("added", [{"x": {"content": "a"}}, {"-1": {"content": "a"}}, ["a"], "a"])
def test_added_tokens_that_are_no_table(tmp_path, added):
    tiny.write(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    with pytest.raises(ConfigError, match="added_tokens_decoder"):
        load(tmp_path)


def test_a_config_without_a_bottom(tmp_path):
    tiny.write(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[" * 100_000)
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json"):
        load(tmp_path)


def test_made_up_words_are_merges(tmp_path):
    """As benchmarks of a model without a tokenizer have it: as many tokens, each a merge of two."""
    folder = tiny.write(tmp_path, size=3000, merged=True)
    said = json.loads((folder / "tokenizer.json").read_text())["model"]
    assert len(said["vocab"]) == 3000
    assert len(said["merges"]) > 2600
    found = load(folder)
    words = [token for token in said["vocab"] if token not in (tiny.BOS, tiny.EOS, tiny.TURN, tiny.TURN_END)][300:]
    text = found.decode([said["vocab"][word] for word in words], False)
    assert found.decode(found.encode(text, False), False) == text
    assert len(found.encode(text, False)) < len(text) / 2
