"""Typed reads of a config.json: what is there, else the architecture's default, else an error that names the key."""

import math
from collections.abc import Mapping
from typing import Any

from octavo.errors import ConfigError

#: Of any size of a model.
_LARGEST = 2**31 - 1


class Reader:
    """``values``: of the file; ``defaults``: where the file is silent. Every method raises ``ConfigError``."""

    def __init__(self, values: Mapping[str, Any], defaults: Mapping[str, Any]):
        self.values, self.defaults = values, defaults

    def get(self, *names: str) -> Any:
        """The first of ``names`` that is there and not null, in the file or else in the defaults."""
        for table in (self.values, self.defaults):
            for name in names:
                if table.get(name) is not None:
                    return table[name]
        return None

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"config.json: {name} must be a whole number of at least 1, got {value!r}")
        if value > _LARGEST:
            raise ConfigError(f"config.json: {name} must be at most {_LARGEST}, got {str(value)[:40]}")
        return value

    def real(self, *names: str, default: float | None = None) -> float | None:
        """A finite number over 0."""
        value = self.get(*names)
        return default if value is None else positive(names[0], value)

    def flag(self, name: str) -> bool:
        """True or false; false where it is nowhere."""
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise ConfigError(f"config.json: {name} must be true or false, got {value!r}")
        return bool(value)

    def ids(self, name: str) -> tuple[int, ...]:
        """Token ids: one, a list, or none."""
        value = self.get(name)
        values = () if value is None else tuple(value) if isinstance(value, list) else (value,)
        if any(isinstance(item, bool) or not isinstance(item, int) or item < 0 for item in values):
            raise ConfigError(f"config.json: {name} must be a token id or a list of them, got {value!r}")
        return values


def positive(name: str, value: Any) -> float:
    """``value`` as a float. Raises ``ConfigError`` where it is no finite number over 0."""
    try:
        if not isinstance(value, bool) and isinstance(value, (int, float)) and math.isfinite(value) and value > 0:
            return float(value)
    except OverflowError:
        pass  # a whole number that no float can hold
    raise ConfigError(f"config.json: {name} must be a number over 0, got {repr(value)[:40]}")
