"""Registry: a literal table from a name to "module:attribute", loaded on first use.

The table is read before anything is imported, so that help, docs and error messages can list it at no cost. Other
packages add rows by entry point.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Generic, TypeVar, cast

from octavo.common.words import nearest
from octavo.errors import ConfigError

T = TypeVar("T")


class Registry(Generic[T]):
    """``kind`` is what an entry is, for messages; ``package`` the module that the table's targets are relative to."""

    def __init__(self, kind: str, package: str, table: Mapping[str, str], plugins: str | None = None):
        self.kind = kind
        self._package = package
        self._table = dict(table)
        self._plugins = plugins
        self._loaded: dict[str, T] = {}

    def names(self) -> list[str]:
        """Every known name, own rows first."""
        return [*self._table, *(name for name in self._entry_points() if name not in self._table)]

    def __contains__(self, name: str) -> bool:
        return name in self._table or name in self._entry_points()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def load(self, name: str) -> T:
        """The entry of that name. Raises ``ConfigError`` that lists the known names."""
        if name not in self._loaded:
            target = self._table.get(name)
            if target is not None:
                module, _, attribute = target.partition(":")
                self._loaded[name] = cast(T, getattr(import_module(f"{self._package}.{module}"), attribute))
            elif name in (plugins := self._entry_points()):
                self._loaded[name] = cast(T, plugins[name].load())
            else:
                hint = nearest(name, self.names())
                raise ConfigError(f"unknown {self.kind} {name!r}{hint}; known: {', '.join(self.names())}")
        return self._loaded[name]

    def _entry_points(self) -> dict:
        return {point.name: point for point in entry_points(group=self._plugins)} if self._plugins else {}
