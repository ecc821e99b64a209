"""What can be told of a configuration before a weight is read: whether this device is there and can do it."""

import torch

from octavo.common.words import nearest
from octavo.config.engine import EngineConfig
from octavo.config.facts import ModelFacts
from octavo.device.attention.base import AttentionNeed
from octavo.device.attention.select import BACKENDS, select
from octavo.device.models.registry import MODELS
from octavo.device.platforms.base import PLATFORMS, Platform
from octavo.device.weights.loader import open_source
from octavo.errors import ConfigError

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def fit(config: EngineConfig) -> tuple[Platform, torch.dtype]:
    """The platform, not started, and the type of weights and activations. Raises ``ConfigError``."""
    platform = PLATFORMS.load(config.device.platform)()
    kind = dtype_of(config.model.dtype)
    if (reason := platform.supports(kind)) is not None:
        raise ConfigError(f"--dtype {config.model.dtype}: {reason}")
    if config.cache.dtype not in ("auto", config.model.dtype):
        raise ConfigError(
            f"a KV cache of {config.cache.dtype} is not possible: keys and values are kept in the model's own type,"
            f" {config.model.dtype}; possible: auto, {config.model.dtype}"
        )
    if config.device.attention_backend is not None:
        BACKENDS.load(config.device.attention_backend)
    MODELS.load(config.model.facts.architecture)
    return platform, kind


def needs(facts: ModelFacts, kind: torch.dtype) -> dict[bool, AttentionNeed]:
    """Whether a layer looks through a window -> what such layers of the model need of a backend."""
    return {
        window: AttentionNeed(
            head_dim=facts.head_dim,
            v_dim=facts.head_dim,
            dtype=kind,
            cache_dtype=kind,
            window=window,
            softcap=facts.attn_softcap is not None,
        )
        for window in sorted({window is not None for window in facts.windows} or {False})
    }


def preview(config: EngineConfig) -> dict[str, str]:
    """What a ``Worker`` will tell as its backends. Checks all that it would but for memory; nothing large is read.

    Raises ``ConfigError``.
    """
    platform, kind = fit(config)
    wanted = config.device.attention_backend
    chosen = [select(need, platform.attention, wanted)[1] for need in needs(config.model.facts, kind).values()]
    open_source(config.model, {}).close()
    return {"attention": ", ".join(dict.fromkeys(chosen))}


def dtype_of(name: str) -> torch.dtype:
    """Raises ``ConfigError``."""
    if name not in _DTYPES:
        raise ConfigError(f"--dtype {name}{nearest(name, _DTYPES)}; known: {', '.join(_DTYPES)}")
    return _DTYPES[name]
