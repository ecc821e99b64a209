"""The tokenizer inside a GGUF file: its vocabulary, merges or scores, and the splitting rule that the file names."""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from octavo.common import gguf
from octavo.common.words import nearest
from octavo.errors import CheckpointError, ConfigError
from octavo.front.tokenizers.base import Specials, Tokenizer
from octavo.front.tokenizers.splits import KINDS

_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = range(1, 7)
_SPACE = "▁"
_NAMES = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "pad_token": "padding",
    "sep_token": "seperator",  # the format's own spelling
    "cls_token": "cls",
    "mask_token": "mask",
}


def load(path: str) -> Tokenizer:
    """Raises ``ConfigError`` for a kind of tokenizer that is not known, ``CheckpointError`` for a broken file."""
    meta = gguf.read(path).metadata
    kind = meta.get("tokenizer.ggml.model")
    if kind not in _MODELS:
        raise ConfigError(
            f"{path}: the tokenizer model {kind!r} is not supported; supported: {', '.join(_MODELS)}; "
            "name a directory with a tokenizer.json by --tokenizer"
        )
    tokens = _list(meta, path, "tokens", None)
    types = _list(meta, path, "token_type", [_NORMAL] * len(tokens))
    if len(types) != len(tokens):
        raise CheckpointError(f"{path}: tokenizer.ggml.token_type has {len(types)} entries for {len(tokens)} tokens")
    try:
        backend, add_bos = _MODELS[kind](meta, path, tokens, types)
    except (CheckpointError, ConfigError):
        raise
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{path}: vocabulary and merges do not fit one another: {error}") from None
    special = [AddedToken(tokens[i], special=True, normalized=False) for i in _of(types, _CONTROL, _UNKNOWN)]
    backend.add_special_tokens(special)
    backend.add_tokens([AddedToken(tokens[i], special=False, normalized=False) for i in _of(types, _USER) if tokens[i]])
    asked = meta.get("tokenizer.ggml.add_bos_token")
    return Tokenizer(
        backend,
        Specials(
            names=_names(meta, tokens),
            eos=_ends(meta, len(tokens)),
            add_bos=add_bos if asked is None else bool(asked),
            templates=_templates(meta),
        ),
        tokens,
    )


def _byte_level(meta: Mapping[str, Any], path: str, tokens: list[str], types: list[int]) -> tuple[Backend, bool]:
    """Byte-level BPE (GPT-2's): the pre-tokenizer is named, not given."""
    pre = meta.get("tokenizer.ggml.pre") or "default"
    split = KINDS.get(pre)
    if split is None:
        raise ConfigError(
            f"{path}: the pre-tokenizer {pre!r} is not known{nearest(pre, KINDS)}; known: {', '.join(KINDS)}; "
            "name a directory with a tokenizer.json by --tokenizer"
        )
    vocab = {token: i for i, token in enumerate(tokens)}
    backend = Backend(models.BPE(vocab=vocab, merges=_merges(meta, path), ignore_merges=split.ignore_merges))
    if split.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in split.patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return backend, split.add_bos


def _spm(meta: Mapping[str, Any], path: str, tokens: list[str], types: list[int]) -> tuple[Backend, bool]:
    """SentencePiece BPE: no merges are stored; the piece with the best score is made first, so scores are merges."""
    scores = _list(meta, path, "scores", None)
    if len(scores) != len(tokens):
        raise CheckpointError(f"{path}: tokenizer.ggml.scores has {len(scores)} entries for {len(tokens)} tokens")
    usable = {tokens[i]: i for i in _of(types, _NORMAL, _USER, _UNUSED)}
    ranked: list[tuple[float, int, str, str]] = []
    for piece, i in usable.items():
        score = -scores[i]
        ranked += [
            (score, i, piece[:cut], piece[cut:])
            for cut in range(1, len(piece))
            if piece[:cut] in usable and piece[cut:] in usable
        ]
    ranked.sort(key=lambda entry: entry[:2])
    merges = [(left, right) for _, _, left, right in ranked]
    prefix = bool(meta.get("tokenizer.ggml.add_space_prefix", True))
    return _fallback(meta, tokens, merges, prefix), True


def _gemma4(meta: Mapping[str, Any], path: str, tokens: list[str], types: list[int]) -> tuple[Backend, bool]:
    """Merges over plain text with SentencePiece's spaces; no words, only lines."""
    backend = _fallback(meta, tokens, _merges(meta, path), prefix=False)
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^\n]+|\n+"), "isolated")
    return backend, True


def _fallback(meta: Mapping[str, Any], tokens: list[str], merges: list[tuple[str, str]], prefix: bool) -> Backend:
    """BPE that spells what it does not know in bytes, and writes a space as "▁"."""
    unknown = meta.get("tokenizer.ggml.unknown_token_id")
    vocab = {token: i for i, token in enumerate(tokens)}
    backend = Backend(
        models.BPE(
            vocab=vocab,
            merges=merges,
            unk_token=tokens[unknown] if unknown is not None and unknown < len(tokens) else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    space = normalizers.Replace(" ", _SPACE)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), space]) if prefix else space
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return backend


_MODELS = {"gpt2": _byte_level, "llama": _spm, "gemma4": _gemma4}


def _list(meta: Mapping[str, Any], path: str, name: str, default: list | None) -> list:
    value = meta.get(f"tokenizer.ggml.{name}", default)
    if not isinstance(value, list):
        raise CheckpointError(f"{path}: the metadata has no list tokenizer.ggml.{name}")
    return value


def _of(types: Sequence[int], *wanted: int) -> list[int]:
    return [i for i, kind in enumerate(types) if kind in wanted]


def _merges(meta: Mapping[str, Any], path: str) -> list[tuple[str, str]]:
    """Each is two tokens with a space between; a token of a plain-text vocabulary may begin with one."""
    out = []
    for line in _list(meta, path, "merges", None):
        cut = line.find(" ", 1)
        if cut < 0:
            raise CheckpointError(f"{path}: tokenizer.ggml.merges has {line[:40]!r}, which is not two tokens")
        out.append((line[:cut], line[cut + 1 :]))
    return out


def _names(meta: Mapping[str, Any], tokens: list[str]) -> dict[str, str]:
    ids = {name: meta.get(f"tokenizer.ggml.{word}_token_id") for name, word in _NAMES.items()}
    return {name: tokens[i] for name, i in ids.items() if isinstance(i, int) and 0 <= i < len(tokens)}


def _ends(meta: Mapping[str, Any], size: int) -> tuple[int, ...]:
    """End of text, of turn and of message: an answer may end with any."""
    ids = [meta.get(f"tokenizer.ggml.{word}_token_id") for word in ("eos", "eot", "eom")]
    return tuple(dict.fromkeys(i for i in ids if isinstance(i, int) and 0 <= i < size))


def _templates(meta: Mapping[str, Any]) -> dict[str, str]:
    """The usual one is "tokenizer.chat_template"; others follow with a name."""
    prefix = "tokenizer.chat_template"
    found = {
        key.removeprefix(prefix).removeprefix(".") or "default": meta[key] for key in meta if key.startswith(prefix)
    }
    return {name: text for name, text in found.items() if isinstance(text, str)}
