"""/server_info: what the server was told and what it runs on. Nothing of it is secret."""

import platform
import sys
from dataclasses import asdict, fields
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec

from octavo import __version__
from octavo.common import probe
from octavo.config import env
from octavo.config.show import show
from octavo.front.server.service import Service

#: Options that hold secrets, or paths of their files.
_HIDDEN = ("api_keys", "tls")
_PACKAGES = ("torch", "numpy", "tokenizers", "safetensors", "fastapi", "pydantic", "uvicorn", "msgspec", "llguidance")


def collect(service: Service, form: str) -> dict[str, Any]:
    """``form`` "text": the engine's configuration as `octavo serve --show-config` prints it; "json": as an object."""
    config = service.engine.config
    options = {spec.name: getattr(service.options, spec.name) for spec in fields(service.options)}
    shown = {name: value for name, value in options.items() if name not in _HIDDEN}
    ready = service.engine.ready
    return {
        "vllm_config": show(config) if form == "text" else _plain(asdict(config)),
        "server_options": _plain(shown),
        "vllm_env": {name: value for name, value in env.shown().items() if value is not None},
        "system_env": {
            "octavo": __version__,
            "python": sys.version.split()[0],
            "platform": platform.platform(),
            "cpu": probe.cpu().name,
            "cores": probe.cores(),
            "gpus": [gpu.name for gpu in probe.gpus()],
            "packages": {name: found for name in _PACKAGES if (found := _version(name))},
        },
        "engine": {
            "max_model_len": ready.max_model_len,
            "page": ready.page,
            "pages": ready.pages,
            "kv_tokens": ready.kv_tokens,
            "backends": ready.backends,
        },
    }


def _plain(value: Any) -> Any:
    """As JSON knows it; other things as text."""
    return msgspec.to_builtins(value, enc_hook=str, str_keys=True)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
