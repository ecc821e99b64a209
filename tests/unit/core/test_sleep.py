"""Sleep and wake: whatever runs, in whatever state, goes on with the same tokens; the device is left with no row."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.engine.core import EngineCore
from octavo.errors import BadRequest
from octavo.testing.cores import fake_config, hear
from octavo.testing.fakes import FakeWorker, expected
from octavo.wire.arrays import pack_tokens
from octavo.wire.reply import AbortReason
from octavo.wire.request import EngineRequest, Sampling


class Sleeper(FakeWorker):
    """Forgets its pages when it sleeps, and takes no plan until it wakes."""

    asleep = False

    def forward(self, plan):
        assert not self.asleep, "a plan came while the device slept"
        super().forward(plan)

    def call(self, command, *args):
        if command == "sleep":
            assert not any(row.alive for row in self.rows.values()), "a row was in use"
            self._values[:] = 0
            self.asleep = True
            return None
        if command == "wake":
            self.asleep = "kv_cache" not in args[0]
            return not self.asleep
        return super().call(command, *args)


def core_of(depth=1, worker=Sleeper, **schedule):
    values = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 64, "page": 4, "depth": depth}
    config = fake_config(None, **values | schedule)
    core = EngineCore(config, worker(config))
    core.start()
    return core


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 20)), min_size=1, max_size=7),
    st.integers(1, 3),
    st.lists(st.integers(0, 12), min_size=1, max_size=3),
)
@settings(max_examples=30)
def test_whoever_ran_goes_on(requests, depth, naps):
    core, told = core_of(depth), {}
    wanted = {}
    for handle, (length, out) in enumerate(requests):
        prompt = [handle + 1, *range(2, length + 1)]
        wanted[handle] = expected(prompt, handle, length + out)
        core.add([EngineRequest(handle, pack_tokens(prompt), Sampling(seed=handle), length + out)])
    for steps in naps:
        for _ in range(steps):
            hear(core.poll(0.0), told)
        core.call("sleep", 1)
        core.scheduler.book.check()
        assert core.call("stats")["pages_cached"] == 0
        assert core.call("health")["asleep"] == 1
        for _ in range(3):
            hear(core.poll(0.0), told)
        assert core.call("wake", ["weights"]) is False
        assert core.call("wake", ["kv_cache"]) is True
        core.call("resume")
    for _ in range(500):
        hear(core.poll(0.0), told)
        if not (core.scheduler.unfinished or core.outstanding):
            break
    assert {handle: one.tokens for handle, one in told.items()} == wanted
    assert not core.worker.wrong
    core.close()


def test_a_sleeper_can_be_left_and_does_not_go_on_by_itself():
    core, told = core_of(depth=2), {}
    core.add([EngineRequest(0, pack_tokens([1, 2, 3]), Sampling(seed=0), 40)])
    for _ in range(4):
        hear(core.poll(0.0), told)
    core.call("sleep", 2)
    with pytest.raises(BadRequest, match="wake"):
        core.call("resume")
    with pytest.raises(BadRequest, match="level"):
        core.call("sleep", 3)
    assert core.call("sleep", 1) is None  # it sleeps deeper already
    core.abort([0], AbortReason.CLIENT)
    hear(core.poll(0.0), told)
    assert core.call("stats")["waiting"] == 0
    assert core.call("stats")["pages_free"] == core.call("stats")["pages"]
    core.close()


def test_a_device_that_cannot_sleep_changes_nothing():
    core, told = core_of(worker=FakeWorker), {}
    core.add([EngineRequest(0, pack_tokens([1, 2, 3]), Sampling(seed=0), 20)])
    for _ in range(4):
        hear(core.poll(0.0), told)
    with pytest.raises(ValueError, match="sleep"):
        core.call("sleep", 1)
    for _ in range(100):
        hear(core.poll(0.0), told)
    assert told[0].tokens == expected([1, 2, 3], 0, 20)
    core.close()
