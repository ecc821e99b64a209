"""What a start has compiled ahead: first what it needs at once, then the rest; and nothing twice."""

import importlib.util
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from device.double import Asynchronous
from device.worker.test_worker import config_of
from octavo.device.kernels import tuned
from octavo.device.kernels.joined import Tile
from octavo.device.kernels.warm import Outcome
from octavo.device.runner.decode import SIZES, padded
from octavo.device.worker import ahead

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")


class Pool:
    """Compiles nothing, and says it did."""

    made: list["Pool"] = []
    fails = False

    def __init__(self, capability, processes):
        self.capability, self.outcome = capability, Outcome()
        self.added, self.waits, self.sealed, self.closed = [], [], False, False
        self.made.append(self)

    @property
    def count(self):
        return len(self.added)

    def add(self, variants):
        self.added += [one for one in dict.fromkeys(variants) if one not in self.added]
        self.outcome.compiled = len(self.added)

    def seal(self):
        self.sealed = True

    def wait(self, count=None):
        self.waits.append(self.count if count is None else count)

    @property
    def done(self):
        if self.fails:
            self.outcome.failed = ["it would not"]
        return True

    def told(self):
        return f"{self.count} compiled"

    def close(self):
        self.closed = True


@pytest.fixture
def pools(monkeypatch, tmp_path):
    monkeypatch.setattr(ahead, "Warming", Pool)
    monkeypatch.setattr(Pool, "made", [])
    monkeypatch.setattr(Pool, "fails", False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    return Pool.made


def ahead_for(most=16, dtype=torch.bfloat16):
    config = config_of()
    return ahead.Ahead(replace(config, schedule=replace(config.schedule, max_num_seqs=most)), dtype, (9, 0))


@needs_triton
def test_a_start_waits_for_its_first_steps_and_the_next_one_for_nothing(pools):
    made = ahead_for()
    (pool,) = pools
    first = pool.count
    assert first
    made.ready()
    assert pool.sealed
    assert pool.waits == [first]
    assert pool.count > first
    names = {one.name for one in pool.added}
    assert {"embed", "gemv", "tile", "decode", "pieces", "commit"} <= names
    assert made.poll()
    assert pool.closed
    assert made.told == f"{pool.count} compiled"
    assert ahead_for().poll()
    assert len(pools) == 1, "all is marked to be there"
    ahead_for(most=17)
    ahead_for(dtype=torch.float16)
    assert len(pools) == 3, "other kernels have another mark"


@needs_triton
def test_what_was_tuned_is_compiled_by_the_next_start(pools, monkeypatch):
    before = ahead_for()
    before.finish()
    how = Tile(16, 32, 32, 1, 2, 4)
    facts = config_of().model.facts
    key = tuned.Linear(16, facts.hidden, facts.q_heads * facts.head_dim, "add")
    with tuned.using(tuned.Table(linear={key: tuple(how)})):
        ahead_for().finish()
        assert len(pools) == 2, "the mark is of other kernels"
        new = [one for one in pools[1].added if one not in pools[0].added]
        made = [dict(one.options) for one in new if one.name == "tile"]
        assert (how.n, how.k) in {(options["BN"], options["BK"]) for options in made}
        monkeypatch.setattr(ahead.probe, "gpus", lambda: [SimpleNamespace(capability=(8, 0))])
        assert ahead_for().mark == before.mark, "tuned here, which is another kind of GPU"


@needs_triton
def test_what_failed_is_tried_again(pools):
    Pool.fails = True
    made = ahead_for()
    assert made.finish()
    assert made.failed == ["it would not"]
    ahead_for()
    assert len(pools) == 2


@needs_triton
def test_a_start_goes_on_where_the_rest_is_not_known(pools, monkeypatch):
    def rest(self):
        raise RuntimeError("no such step")

    monkeypatch.setattr(ahead.Ahead, "_rest", rest)
    made = ahead_for()
    made.ready()
    assert pools[0].sealed
    assert made.poll()
    assert made.failed == ["not known beforehand: RuntimeError: no such step"]
    assert not made.mark.exists()


@pytest.mark.parametrize("most", [1, 3, 8, 63, 64, 100, 256, 300])
def test_every_size_is_made_ready_once(most):
    first, rest = ahead.first_sizes(most), ahead.other_sizes(most)
    sizes = [padded(size) for size in first] + rest
    assert len(set(sizes)) == len(sizes)
    assert sorted(sizes) == [size for size in SIZES if size <= padded(most)]


def test_where_no_kernel_is_compiled_nobody_is_asked(pools):
    assert ahead.ahead_of(config_of(), Asynchronous(), torch.float32) is None
    assert not pools
