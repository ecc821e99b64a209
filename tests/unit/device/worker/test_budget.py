"""Where a GPU's memory goes, on a device made up of numbers."""

import pytest
import torch

from device.double import Asynchronous, PagedAttention
from device.worker.test_worker import config_of
from octavo.config.engine import CacheSection, ScheduleSection
from octavo.device.weights.loader import load
from octavo.device.worker import budget
from octavo.errors import OutOfMemory

GIB = 1 << 30


class Numbers(Asynchronous):
    """8 GiB, of which 3 are taken, 1 of them by this process; a step takes ``peak`` more."""

    peak = GIB // 2

    def total_memory(self):
        return 8 * GIB

    def free_memory(self):
        return 5 * GIB

    def used_memory(self):
        return GIB

    def reset_peak(self):
        pass

    def peak_memory(self):
        return GIB + self.peak

    def describe(self):
        return "a GPU of numbers"


class Paged(PagedAttention):
    def pages(self, spec):
        return (16,)


@pytest.fixture(scope="module")
def model():
    return load(config_of().model, torch.device("cpu"), torch.float32, 256)


def measured(model, graphs=False, **cache) -> budget.Budget:
    backends = {layer.name: Paged() for layer in model.attentions}
    schedule = ScheduleSection(max_num_seqs=4, max_num_batched_tokens=30)
    return budget.measure(model, Numbers(), backends, CacheSection(**cache), schedule, torch.float32, graphs, 256)


def test_the_cache_gets_what_a_share_of_all_leaves(model):
    found = measured(model, utilization=0.75)
    assert found.kv == 6 * GIB - 3 * GIB - GIB // 2 - budget.MARGIN
    assert (found.total, found.held, found.activations, found.graphs) == (8 * GIB, 3 * GIB, GIB // 2, 0)
    with_graphs = measured(model, graphs=True, utilization=0.75)
    assert with_graphs.graphs == GIB // 2 + budget.GRAPH * (budget.MIXED + 3)
    assert with_graphs.kv == found.kv - with_graphs.graphs
    assert measured(model, memory=GIB).kv == GIB


def test_more_than_there_is_is_refused_with_what_would_fit(model):
    most = 5 * GIB - GIB // 2 - budget.MARGIN
    assert measured(model, memory=most).kv == most
    with pytest.raises(OutOfMemory, match=rf"at most --kv-cache-memory {most} would"):
        measured(model, memory=most + 1)


def test_steps_that_do_not_fit_name_smaller_ones(model, monkeypatch):
    def full(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(type(model), "__call__", full, raising=False)
    monkeypatch.setattr(type(model), "forward", full)
    with pytest.raises(OutOfMemory, match="--max-num-batched-tokens 15 --max-num-seqs 4 would need about half"):
        measured(model)
