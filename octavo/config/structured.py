"""``--structured-outputs-config``, a JSON object with vLLM's names, and ``--structured-outputs-backend``.

Of each value: what was said, None where nothing was. All raise ``ConfigError``.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from octavo.common.words import nearest
from octavo.errors import ConfigError

BACKENDS = ("auto", "guidance", "xgrammar")
#: Keys of the object, with their types.
_TYPES = {
    "backend": str,
    "disable_any_whitespace": bool,
    "disable_additional_properties": bool,
    "whitespace_pattern": str,
}


def _said(given: Mapping[str, Any], name: str) -> Any:
    for key, value in given.items():
        if key not in _TYPES:
            raise ConfigError(f"--structured-outputs-config has no key {key!r}{nearest(key, _TYPES)}")
        if not isinstance(value, _TYPES[key]):
            raise ConfigError(f"--structured-outputs-config: {key!r} cannot be {value!r}")
    return given.get(name)


def backend(given: Mapping[str, Any], flag: str | None) -> str | None:
    inside = _said(given, "backend")
    if inside is not None and flag is not None and inside != flag:
        raise ConfigError(f"--structured-outputs-backend {flag!r} and --structured-outputs-config say different things")
    asked = flag if inside is None else inside
    if asked is not None and asked not in BACKENDS:
        raise ConfigError(
            f"the structured outputs backend {asked!r} is not known{nearest(asked, BACKENDS)}; "
            f"known: {', '.join(BACKENDS)}"
        )
    if asked == "xgrammar" and find_spec("xgrammar") is None:
        raise ConfigError(
            "--structured-outputs-backend xgrammar needs the package xgrammar: pip install octavo[xgrammar]"
        )
    return asked


def whitespace(given: Mapping[str, Any]) -> str | None:
    """A regex of what may stand between JSON tokens; "" for nothing."""
    pattern, none = _said(given, "whitespace_pattern"), _said(given, "disable_any_whitespace")
    if pattern and none:
        raise ConfigError(
            "--structured-outputs-config: disable_any_whitespace and whitespace_pattern exclude each other"
        )
    return "" if none else pattern


def closed(given: Mapping[str, Any]) -> bool | None:
    """Whether objects have only the properties that their schemas name."""
    return _said(given, "disable_additional_properties")
