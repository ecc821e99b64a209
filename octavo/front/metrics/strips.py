"""Counters, gauges and histograms of several processes, in memory that they share.

Each process writes a strip of its own and reads all of them, so that whoever is asked tells the sums. A strip outlives
the process that wrote it, however that ended, and the next process in its place goes on with it: nothing is forgotten,
and no sum goes backwards. A number is eight bytes at a multiple of eight: it is read whole or not yet.
"""

import json
import mmap
import os
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Literal, TypeAlias

from prometheus_client import Metric
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from octavo.common.log import logger

#: Bytes of a strip; pages that nothing is written to take no memory.
SIZE = 1 << 20
_ENTRY = struct.Struct("<II")
_log = logger(__name__)

Kind = Literal["counter", "gauge", "histogram"]
Row: TypeAlias = "memoryview[float]"


class Strip:
    """Named rows of numbers, in the order in which they were added.

    Its bytes: how many of them are used; then the entries: length of the name, count of the numbers, the name as JSON,
    the numbers, each at a multiple of eight.
    """

    def __init__(self, memory: memoryview):
        self._bytes = memory
        self._numbers = memory.cast("d")
        self._used = memory[:8].cast("Q")
        self._read = 8
        self._rows: dict[tuple[str, ...], Row] = {}
        self._full = False

    def rows(self) -> dict[tuple[str, ...], Row]:
        """Everything that is there by now."""
        used = max(8, self._used[0])
        while self._read < used:
            length, count = _ENTRY.unpack_from(self._bytes, self._read)
            start = self._read + _ENTRY.size
            name = tuple(json.loads(bytes(self._bytes[start : start + length])))
            self._read = self._place(name, start + _padded(length), count)
        return self._rows

    def row(self, name: tuple[str, ...], count: int) -> Row:
        """The ``count`` numbers under ``name``, zeros where it is new. Where there is no room they are nobody's."""
        found = self.rows().get(name)
        if found is not None:
            return found
        said = json.dumps(name).encode()
        start = self._read + _ENTRY.size
        end = start + _padded(len(said)) + 8 * count
        if end > len(self._bytes):
            if not self._full:
                self._full = True
                _log.warning("there is no room for more metrics; %s is the first that is not told", name[0])
            return memoryview(bytearray(8 * count)).cast("d")
        _ENTRY.pack_into(self._bytes, self._read, len(said), count)
        self._bytes[start : start + len(said)] = said
        self._read = self._place(name, start + _padded(len(said)), count)
        self._used[0] = self._read  # last: who reads up to here finds it whole
        return self._rows[name]

    def _place(self, name: tuple[str, ...], start: int, count: int) -> int:
        self._rows[name] = self._numbers[start // 8 : start // 8 + count]
        return start + 8 * count


class Strips(Sequence[Strip]):
    """``count`` strips. ``fd`` is of memory that ``share`` made; without one they are this process's alone."""

    def __init__(self, count: int = 1, fd: int = -1):
        whole = memoryview(mmap.mmap(fd, count * SIZE))
        self._strips = [Strip(whole[at * SIZE : (at + 1) * SIZE]) for at in range(count)]

    @staticmethod
    def share(count: int) -> int:
        """An open file of memory for ``count`` strips, for ``fd`` here and in other processes."""
        fd = os.memfd_create("octavo-metrics")
        os.ftruncate(fd, count * SIZE)
        return fd

    def __len__(self) -> int:
        return len(self._strips)

    def __getitem__(self, index: Any) -> Any:
        return self._strips[index]


class Number:
    """A counter or a gauge."""

    __slots__ = ("_row",)

    def __init__(self, row: Row):
        self._row = row

    def inc(self, by: float = 1.0) -> None:
        self._row[0] += by

    def set(self, value: float) -> None:
        self._row[0] = value


class Histogram:
    """Counts by upper bound, one over them all, and the sum. A value may count many times at the cost of once."""

    __slots__ = ("_bounds", "_row")

    def __init__(self, row: Row, bounds: Sequence[float]):
        self._row, self._bounds = row, bounds

    def observe(self, value: float, times: int = 1) -> None:
        self._row[bisect_left(self._bounds, value)] += times
        self._row[-1] += value * times


class Family:
    """A metric by its labels. ``labels`` must come with values that are few: each takes its place for good."""

    def __init__(
        self, strip: Strip, kind: Kind, name: str, text: str, labels: Sequence[str], bounds: Sequence[float] = ()
    ):
        self.kind, self.name, self.text, self.labels, self.bounds = kind, name, text, labels, tuple(bounds)
        self._strip = strip
        self._known: dict[tuple[str, ...], Number | Histogram] = {}

    def number(self, *values: str) -> Number:
        """Of a counter or a gauge."""
        found = self._known.get(values)
        if found is None:
            found = self._known[values] = Number(self._strip.row((self.name, *values), 1))
        assert isinstance(found, Number)
        return found

    def histogram(self, *values: str) -> Histogram:
        found = self._known.get(values)
        if found is None:
            row = self._strip.row((self.name, *values), len(self.bounds) + 2)
            found = self._known[values] = Histogram(row, self.bounds)
        assert isinstance(found, Histogram)
        return found

    def told(self, rows: dict[tuple[str, ...], list[Row]]) -> Metric:
        """``rows``: by the values of labels, that of each strip. Counts add up; of a gauge the largest is told, since
        only one process knows it and the others say 0."""
        if self.kind == "histogram":
            histogram = HistogramMetricFamily(self.name, self.text, labels=self.labels)
            names = [floatToGoString(bound) for bound in (*self.bounds, float("inf"))]
            for values, parts in rows.items():
                *counts, total = map(sum, zip(*parts, strict=True))
                histogram.add_metric(values, list(zip(names, accumulate(counts), strict=True)), total)
            return histogram
        plain: CounterMetricFamily | GaugeMetricFamily
        counts_up = self.kind == "counter"
        plain = (CounterMetricFamily if counts_up else GaugeMetricFamily)(self.name, self.text, labels=self.labels)
        for values, parts in rows.items():
            plain.add_metric(values, (sum if counts_up else max)(part[0] for part in parts))
        return plain


class Sheet(Collector):
    """Families over ``strips``, written to the one numbered ``own``."""

    def __init__(self, strips: Strips, own: int):
        self.strips = strips
        self.strip: Strip = strips[own]
        self._families: dict[str, Family] = {}

    def add(self, kind: Kind, name: str, text: str, labels: Sequence[str] = (), bounds: Iterable[float] = ()) -> Family:
        found = self._families[name] = Family(self.strip, kind, name, text, labels, tuple(bounds))
        return found

    def collect(self) -> Iterator[Metric]:
        rows: dict[str, dict[tuple[str, ...], list[Row]]] = {name: {} for name in self._families}
        for strip in self.strips:
            for (name, *values), row in strip.rows().items():
                if name in rows:
                    rows[name].setdefault(tuple(values), []).append(row)
        for name, family in self._families.items():
            yield family.told(rows[name])


def _padded(length: int) -> int:
    return -(-length // 8) * 8
