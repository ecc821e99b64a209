"""What the processes of a server take, as one: processor time, memory and open files, by Prometheus' usual names."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from prometheus_client import Metric, ProcessCollector
from prometheus_client.registry import Collector


class Processes(Collector):
    """Sums over the processes that ``pids`` names, of their start the earliest. ``spent``: seconds of the processor
    that went to processes which have ended."""

    def __init__(self, pids: Callable[[], Iterable[int]], spent: Callable[[], float] = lambda: 0.0):
        self._pids, self._spent = pids, spent

    def collect(self) -> Iterator[Metric]:
        found: dict[str, Metric] = {}
        for pid in self._pids():
            for metric in ProcessCollector(pid=partial(int, pid), registry=None).collect():
                known = found.setdefault(metric.name, metric)
                if known is not metric:
                    join = min if metric.name == "process_start_time_seconds" else float.__add__
                    (one,), (two,) = known.samples, metric.samples
                    known.samples = [one._replace(value=join(float(one.value), float(two.value)))]
        if "process_cpu_seconds" in found:
            (one,) = found["process_cpu_seconds"].samples
            found["process_cpu_seconds"].samples = [one._replace(value=one.value + self._spent())]
        yield from found.values()


def seconds(pid: int) -> float:
    """Of the processor, by ``pid`` so far; it may have ended already, but not been waited for."""
    for metric in ProcessCollector(pid=partial(int, pid), registry=None).collect():
        if metric.name == "process_cpu_seconds":
            return metric.samples[0].value
    return 0.0
