"""The tokenizer of a Hugging Face directory: tokenizer.json, and what stands beside it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from octavo.errors import CheckpointError, ConfigError
from octavo.front.tokenizers.base import Specials, Tokenizer

_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def load(path: str) -> Tokenizer:
    """Raises ``ConfigError`` where there is no tokenizer.json, ``CheckpointError`` where a file is broken."""
    folder = Path(path)
    file = folder / "tokenizer.json"
    if not file.is_file():
        other = next(
            (name for name in ("tokenizer.model", "vocab.json", "tekken.json") if (folder / name).exists()), None
        )
        hint = f" (it has {other}: convert it, transformers' save_pretrained writes tokenizer.json)" if other else ""
        raise ConfigError(
            f"{folder} has no tokenizer.json{hint}; name another with --tokenizer,"
            " or take and give ids only with --skip-tokenizer-init"
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{file} is no tokenizer that the tokenizers library can read: {error}") from None
    # A file may carry the padding or the truncation of whoever saved it last; octavo never truncates unasked.
    backend.no_padding()
    backend.no_truncation()
    config = _read(folder / "tokenizer_config.json")
    _add_missing(backend, config.get("added_tokens_decoder") or {})
    names = _names(_read(folder / "special_tokens_map.json")) | _names(config)
    return Tokenizer(
        backend,
        Specials(
            names=names,
            eos=_ends(folder, backend, names),
            add_bos=_flag(config.get("add_bos_token")),
            templates=_templates(folder, config),
        ),
    )


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{file} holds no JSON object")
    return found


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _text(value: Any) -> str | None:
    """A token is given as its text or as {"content": text, ...}."""
    found = value.get("content") if isinstance(value, Mapping) else value
    return found if isinstance(found, str) else None


def _names(config: Mapping[str, Any]) -> dict[str, str]:
    return {name: text for name in _NAMES if (text := _text(config.get(name))) is not None}


def _add_missing(backend: tokenizers.Tokenizer, added: Mapping[str, Any]) -> None:
    """Tokens that tokenizer_config.json knows and tokenizer.json does not."""
    here = {token.content for token in backend.get_added_tokens_decoder().values()}
    if not isinstance(added, Mapping) or not all(str(token).isdecimal() for token in added):
        raise CheckpointError("tokenizer_config.json: added_tokens_decoder must map token ids to tokens")
    for _, spec in sorted(added.items(), key=lambda item: int(item[0])):
        text = _text(spec)
        if text is None or text in here:
            continue
        flags = {
            key: bool(spec[key]) for key in ("lstrip", "rstrip", "single_word", "normalized", "special") if key in spec
        }
        backend.add_tokens([tokenizers.AddedToken(text, **flags)])


def _ends(folder: Path, backend: tokenizers.Tokenizer, names: Mapping[str, str]) -> tuple[int, ...]:
    """End-of-sequence ids: generation_config.json's (it knows of turn ends) and the tokenizer's, else config.json's."""
    found: dict[int, None] = {}
    for value in (
        _read(folder / "generation_config.json").get("eos_token_id"),
        backend.token_to_id(names["eos_token"]) if "eos_token" in names else None,
    ):
        found |= dict.fromkeys(_ids(value))
    return tuple(found or dict.fromkeys(_ids(_read(folder / "config.json").get("eos_token_id"))))


def _ids(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [item for item in values if isinstance(item, int) and not isinstance(item, bool)]


def _templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Files win over tokenizer_config.json, as in transformers."""
    found: dict[str, str] = {}
    given = config.get("chat_template")
    if isinstance(given, str):
        found["default"] = given
    elif isinstance(given, list):
        found |= {
            str(one["name"]): str(one["template"]) for one in given if isinstance(one, dict) and "template" in one
        }
    old = _read(folder / "chat_template.json").get("chat_template")
    if isinstance(old, str):
        found["default"] = old
    for file in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[file.stem] = file.read_text(encoding="utf-8")
    if (folder / "chat_template.jinja").is_file():
        found["default"] = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    return found
