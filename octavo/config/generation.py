"""``--generation-config`` and ``--override-generation-config`` -> the model's sampling defaults."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.config.args import mapping
from octavo.config.checkpoint import Checkpoint
from octavo.errors import BadRequest, ConfigError
from octavo.params import SamplingParams

#: Names of generation_config.json that become sampling defaults, and what octavo calls them.
NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


def defaults(source: str, override: Mapping[str, Any], checkpoint: Checkpoint) -> tuple[dict[str, Any], str]:
    """Values by the names of ``SamplingParams``, and where they are from. ``source``: "auto", "vllm" (none), a file
    or the directory of one. Raises ``ConfigError``."""
    if source == "vllm":
        found, why = {}, "none of the model's, as asked"
    elif source == "auto":
        found = checkpoint.generation
        why = "from the model's generation_config.json" if found else "the model brings no generation_config.json"
        if found and checkpoint.kind == "gguf":
            why = "what the embedded model's authors recommend"
    else:
        file = Path(source) if source.endswith(".json") else Path(source) / "generation_config.json"
        found, why = _read(file), f"from {file}"
    for name in override:
        if name not in NAMES and name not in NAMES.values():
            raise ConfigError(f"--override-generation-config has {name!r}; possible: {', '.join(NAMES)}")
    if override:
        why += ", with what --override-generation-config says"
    values = _sampling_names(found) | _sampling_names(override)
    try:
        SamplingParams(**values)
    except BadRequest as error:
        raise ConfigError(f"the sampling defaults ({why}) are wrong: {error}") from None
    return values, why


def _read(file: Path) -> dict[str, Any]:
    try:
        return mapping(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--generation-config: {file} cannot be read: {error}") from None


def _sampling_names(found: Mapping[str, Any]) -> dict[str, Any]:
    names = NAMES | {name: name for name in NAMES.values()}
    return {names[name]: value for name, value in found.items() if name in names and value is not None}
