"""Effective values for people: what each is, the flag that says it, and why it was chosen."""

import json
from typing import Any, NamedTuple

from octavo.config.engine import EngineConfig
from octavo.config.speculation import said

#: Decided value -> the flags that say it, where that is not the one of its own name.
FLAGS: dict[str, tuple[str, ...]] = {
    "device.platform": ("device",),
    "grammar.backend": ("structured_outputs_backend", "structured_outputs_config"),
    "grammar.whitespace": ("structured_outputs_config",),
    "grammar.closed": ("structured_outputs_config",),
    "model.path": ("model",),
    "text.served_names": ("served_model_name",),
    "text.skip_tokenizer": ("skip_tokenizer_init",),
    "text.generation_defaults": ("generation_config", "override_generation_config"),
    "cache.page": ("block_size",),
    "cache.memory": ("kv_cache_memory_bytes",),
    "cache.utilization": ("gpu_memory_utilization",),
    "cache.prefix_caching": ("enable_prefix_caching",),
    "schedule.policy": ("scheduling_policy",),
    "schedule.depth": ("async_scheduling",),
    "schedule.speculation": ("speculative_config",),
}
#: Decided values of which None means that only the device can say.
_LATER = ("device.threads", "device.attention_backend", "cache.page", "cache.memory")
#: What is shown of them.
AT_START = "(chosen at start)"
#: Values up to this many characters stay in columns; a path or a template is shown whole.
_WIDE = 60


class Row(NamedTuple):
    """``flags``: fields of ``ServeArgs``."""

    name: str
    value: Any
    flags: tuple[str, ...]
    why: str


def rows(config: EngineConfig) -> list[Row]:
    """Every value of the engine that was decided, in the order of the decisions."""
    found = []
    for name, reason in config.why.items():
        section, _, key = name.partition(".")
        value = getattr(getattr(config, section), key)
        if name == "schedule.max_model_len" and value is None:
            value = config.model.facts.max_positions
        elif name == "schedule.speculation" and value is not None:
            value = said(value)
        elif name in _LATER and value is None:
            value = AT_START
        found.append(Row(name, value, FLAGS.get(name, (key,)), reason))
    return found


def table(rows: list[Row]) -> str:
    """One a line: name, value, # flags: reason."""
    lines = []
    for name, value, flags, why in rows:
        text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
        said = ", ".join("--" + flag.replace("_", "-") for flag in flags)
        lines.append((name, text.replace("\n", "\\n"), f"{said}: {why}"))
    widths = [max(len(name) for name, _, _ in lines), max(len(text) for _, text, _ in lines if len(text) <= _WIDE)]
    return "\n".join(f"{name:{widths[0]}}  {text:{widths[1]}}  # {why}" for name, text, why in lines)


def show(config: EngineConfig) -> str:
    """The engine's rows as text."""
    return table(rows(config))
