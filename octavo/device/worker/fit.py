"""What can be told of a configuration before a weight is read: whether this device is there and can do it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from octavo.common.words import nearest
from octavo.config.engine import EngineConfig
from octavo.config.facts import ModelFacts
from octavo.device.attention.base import AttentionBackend, AttentionNeed
from octavo.device.attention.select import BACKENDS, select
from octavo.device.models.registry import MODELS
from octavo.device.platforms.base import PLATFORMS, Platform
from octavo.device.weights.loader import open_source
from octavo.device.worker.memory import CPU_RULE, gpu_rule
from octavo.errors import ConfigError
from octavo.wire.kv import KVSpec

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


@dataclass(frozen=True)
class Preview:
    """``attention``: backends, and why. ``page``: tokens a page unless others are asked for. ``memory``: by which rule
    the KV cache gets its memory unless it is asked for."""

    attention: str
    page: int
    memory: str


def preview(config: EngineConfig) -> Preview:
    """What a ``Worker`` will choose. Checks all that it would but for memory; nothing large is read.

    Raises ``ConfigError``.
    """
    platform, kind = fit(config)
    wanted = config.device.attention_backend
    facts = config.model.facts
    chosen = {window: select(need, platform.attention, wanted) for window, need in needs(facts, kind).items()}
    open_source(config.model, {}).close()
    layers = [(f"{window}", _spec(facts, window, kind.itemsize)) for window in facts.windows or (None,)]
    backends = {name: chosen[spec.window is not None][0] for name, spec in layers}
    return Preview(
        attention=", ".join(dict.fromkeys(why for _, why in chosen.values())),
        page=common_pages(backends, layers)[0],
        memory=gpu_rule(config.cache.utilization) if platform.asynchronous else CPU_RULE,
    )


def _spec(facts: ModelFacts, window: int | None, item: int) -> KVSpec:
    return KVSpec(facts.kv_heads, facts.head_dim, facts.head_dim, item, window)


def common_pages(backends: Mapping[str, AttentionBackend], layers: Sequence[tuple[str, KVSpec]]) -> tuple[int, ...]:
    """Tokens a page that every layer's backend can walk, in the order of the first layer's. Raises ``ConfigError``."""
    sizes = {(backends[name].name, spec): tuple(backends[name].pages(spec)) for name, spec in layers}
    first, *others = sizes.values()
    common = tuple(page for page in first if all(page in few for few in others))
    if not common:
        each = "; ".join(
            f"{name} {', '.join(map(str, few))}" for name, few in dict.fromkeys((k[0], v) for k, v in sizes.items())
        )
        raise ConfigError(f"the model's layers share no page size: their attention backends can walk pages of {each}")
    return common


def dtype_of(name: str) -> torch.dtype:
    """Raises ``ConfigError``."""
    if name not in _DTYPES:
        raise ConfigError(f"--dtype {name}{nearest(name, _DTYPES)}; known: {', '.join(_DTYPES)}")
    return _DTYPES[name]
