"""What `octavo tune` measured on a kind of GPU: for rows, a weight's shape and its joints the tile that multiplies
fastest, or the library; for (row, key-value head) pairs how decode attends.

A table is a JSON file. The user's cache holds those that were made here, which win over this package's own, in
``tables``. They are read when a step of a GPU first asks; what no table knows is the asker's own affair.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from octavo.common import probe
from octavo.common.log import logger
from octavo.common.math import next_power_of_two

_log = logger(__name__)
PACKAGE = Path(__file__).parent / "tables"
#: Numbers of a tile and of a way to decode, in the files. The last of a way came later: where it is missing it is 0.
TILE, DECODE = 8, 8
#: Least and most rows of a bucket of linears.
LEAST, MOST = 16, 512


class Linear(NamedTuple):
    """``rows``: of a bucket; a weight [n, k]; ``joint``: what goes with the product, in words with a + between them, of
    norm, an activation, add, bias; "" for nothing."""

    rows: int
    n: int
    k: int
    joint: str


class Decode(NamedTuple):
    """``pairs``: of rows and key-value heads, a power of two; ``group``: query heads of a key-value head."""

    pairs: int
    group: int
    head_dim: int


@dataclass
class Table:
    """Values are ``joined.Tile``'s numbers (None: the library) and ``attention.triton.Decode``'s."""

    linear: dict[Linear, tuple[int, ...] | None] = field(default_factory=dict)
    decode: dict[Decode, tuple[int, ...]] = field(default_factory=dict)


_asked: dict[Linear | Decode, None] | None = None
_forced: Table | None = None


def bucket(rows: int) -> int:
    """Numbers of rows that run alike: those that pad to the same power of two."""
    return max(LEAST, next_power_of_two(rows))


def linear(rows: int, n: int, k: int, joint: str) -> tuple[bool, tuple[int, ...] | None]:
    """Whether the table knows, and what it says."""
    key = Linear(bucket(rows), n, k, joint)
    if _asked is not None:
        _asked[key] = None
    table = current()
    return key in table.linear, table.linear.get(key)


def decode(pairs: int, group: int, head_dim: int) -> tuple[int, ...] | None:
    """What the table says; ``pairs`` a power of two."""
    key = Decode(pairs, group, head_dim)
    if _asked is not None:
        _asked[key] = None
    return current().decode.get(key)


@contextmanager
def asking() -> Iterator[Mapping[Linear | Decode, None]]:
    """Within it, what is asked of the table."""
    global _asked
    before, _asked = _asked, {}
    try:
        yield _asked
    finally:
        _asked = before


@contextmanager
def using(table: Table) -> Iterator[None]:
    """Within it, ``table`` is the one."""
    global _forced
    before, _forced = _forced, table
    try:
        yield
    finally:
        _forced = before


def current() -> Table:
    """The table of this machine's first GPU; an empty one where nothing was measured."""
    return _read() if _forced is None else _forced


@lru_cache(maxsize=1)
def _read() -> Table:
    gpus = probe.gpus()
    return load(gpus[0].name) if gpus else Table()


def folder() -> Path:
    """Where tables of this machine's user lie."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "octavo" / "tuned"


def slug(name: str) -> str:
    """A GPU's or a model's name as part of a file's."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")


def load(gpu: str) -> Table:
    """All that is known of a GPU of that name. A file that makes no sense is told of and left out."""
    table = Table()
    for place in (PACKAGE, folder()):
        for path in sorted(place.glob(f"{slug(gpu)}--*.json")):
            try:
                _take(json.loads(path.read_text()), table)
            except (OSError, ValueError, LookupError, TypeError) as error:
                _log.warning("%s is no table of kernels: %s", path, error)
    return table


def _take(told: Mapping[str, Any], table: Table) -> None:
    linears = {
        Linear._make((*_whole(one["key"][:3], 3), str(one["key"][3]))): None
        if one["best"] is None
        else _whole(one["best"], TILE)
        for one in told["linear"]
    }
    decodes = {Decode._make(_whole(one["key"], 3)): _way(one["best"]) for one in told["decode"]}
    table.linear |= linears
    table.decode |= decodes


def _way(values: Any) -> tuple[int, ...]:
    return _whole([*values, 0] if len(values) == DECODE - 1 else values, DECODE)


def _whole(values: Any, count: int) -> tuple[int, ...]:
    if not isinstance(values, list) or len(values) != count or not all(isinstance(one, int) for one in values):
        raise ValueError(f"{values!r} is no list of {count} whole numbers")
    return tuple(values)


def write(path: Path, told: Mapping[str, Any]) -> None:
    """Keep a table for later starts, an entry a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    fields = []
    for name, value in told.items():
        lines = map(json.dumps, value if isinstance(value, list) else [value])
        text = ",\n  ".join(lines)
        fields.append(f"{json.dumps(name)}: " + (f"[\n  {text}\n ]" if isinstance(value, list) else text))
    scratch.write_text("{\n " + ",\n ".join(fields) + "\n}\n")
    scratch.replace(path)
    _read.cache_clear()
