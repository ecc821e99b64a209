"""The worker with a small random model: boot, plans, commands, refusals."""

import dataclasses
import gc

import numpy as np
import pytest
import torch

from octavo.config.engine import CacheSection, DeviceSection, EngineConfig, ModelSection, ScheduleSection, TextSection
from octavo.config.facts import ModelFacts
from octavo.device.attention.cpu import CPUAttention
from octavo.device.platforms.base import PLATFORMS
from octavo.device.worker.fit import common_pages
from octavo.device.worker.worker import Worker
from octavo.errors import ConfigError
from octavo.wire.arrays import ints
from octavo.wire.kv import KVGroup, KVLayout, KVSpec
from octavo.wire.plan import Kind, NewRow, PageDiff, StepPlan
from octavo.wire.request import Sampling

FACTS = ModelFacts(
    architecture="LlamaForCausalLM", vocab=71, hidden=32, layers=2, q_heads=4, kv_heads=2, head_dim=8, ffn=48,
    max_positions=256, dtype="float32",
)  # fmt: skip


def config_of(model=None, **sections) -> EngineConfig:
    section = ModelSection(path="", facts=FACTS, dtype="float32", load_format="dummy")
    return EngineConfig(
        model=dataclasses.replace(section, **(model or {})),
        text=TextSection(tokenizer="", served_names=("tiny",)),
        device=sections.pop("device", DeviceSection(threads=torch.get_num_threads())),
        schedule=sections.pop("schedule", ScheduleSection(max_num_seqs=4, max_num_batched_tokens=64)),
        **sections,
    )


def layout_of(worker: Worker, pages: int, page: int = 16) -> KVLayout:
    layers = worker.hello().layers
    group = KVGroup(layers[0][1], tuple(name for name, _ in layers))
    return KVLayout(page, pages, page * group.spec.token_bytes, (group,))


def prompt_plan(tokens: list[int], step: int = 0) -> StepPlan:
    count = len(tokens)
    one = ints([0])
    return StepPlan(
        step, Kind.MIXED, one, one, one, ints([count]), ints([count]), np.ones(1, np.bool_), one, ints(tokens),
        [NewRow(0, 0, count, count, 99, 0, (), Sampling(seed=1, temperature=0.0))],
        PageDiff(one, one, one, ints([2]), ints([3, 1])),
    )  # fmt: skip


def test_hello_tells_what_the_model_needs():
    hello = Worker(config_of(cache=CacheSection(memory=12345))).hello()
    assert (hello.platform, hello.dtype, hello.vocab, hello.memory) == ("cpu", "float32", 71, 12345)
    assert len(hello.layers) == 2
    assert hello.layers[0][1].token_bytes == 2 * 2 * 8 * 4
    assert hello.page_sizes[0] == 16
    weights = 71 * 32 * 2 + 32 + 2 * (2 * 32 + 32 * 64 + 32 * 32 + 3 * 32 * 48)
    assert 4 * weights <= hello.weights <= 8 * weights + (1 << 20)
    assert hello.activations > 0
    assert hello.backends["attention"].startswith("cpu")
    assert {"load", "trial"} <= set(hello.phases)


def test_a_plan_gives_the_same_token_twice_and_counts():
    worker = Worker(config_of())
    worker.build(layout_of(worker, 5), 64)
    said = []
    for step in range(2):
        worker.forward(prompt_plan([1, 2, 3, 4, 5], step))
        (ticket,) = worker.sample(None)
        assert ticket.wait().fault is None
        said.append(ticket.wait().tokens.tolist())
    assert said[0] == said[1]
    assert worker.call("stats") == {"steps": 2, "tokens": 10}
    assert worker.call("memory")["used"] > 0
    with pytest.raises(ValueError, match=r"did you mean .stats..*known: stats, memory"):
        worker.call("stat")
    worker.close()
    worker.close()


def test_a_large_cache_takes_memory_only_where_it_is_used():
    worker = Worker(config_of())
    before = worker.call("memory")["used"]
    worker.build(layout_of(worker, 1 << 18), 64)  # 1 GiB
    worker.forward(prompt_plan([1, 2, 3]))
    (ticket,) = worker.sample(None)
    assert ticket.wait().fault is None
    assert worker.call("memory")["used"] - before < 64 << 20


def test_layers_that_share_a_cache_layout_but_not_a_table():
    facts = dataclasses.replace(FACTS, architecture="MistralForCausalLM", windows=(None, 8))
    worker = Worker(config_of({"facts": facts}))
    (first, full), (second, windowed) = worker.hello().layers
    assert (full.window, windowed.window) == (None, 8)
    groups = (KVGroup(full, (first,)), KVGroup(windowed, (second,)))
    worker.build(KVLayout(16, 8, 16 * full.token_bytes, groups), 64)
    plan = prompt_plan(list(range(20)))
    zero = ints([0, 0])
    plan.pages = PageDiff(ints([0, 1]), zero, zero, ints([2, 2]), ints([3, 1, 4, 5]))
    worker.forward(plan)
    (ticket,) = worker.sample(None)
    assert ticket.wait().fault is None
    assert ticket.wait().counts.tolist() == [1]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model": {"dtype": "float12"}}, "--dtype float12.*did you mean 'float"),
        ({"cache": CacheSection(dtype="fp8")}, "KV cache of fp8 is not possible.*possible: auto, float32"),
        ({"device": DeviceSection(attention_backend="flash")}, "unknown attention backend 'flash'.*known: cpu"),
        ({"device": DeviceSection(platform="tpu")}, "unknown platform 'tpu'"),
    ],
)
def test_what_cannot_work_is_said_in_a_sentence(change, says):
    with pytest.raises(ConfigError, match=says):
        Worker(config_of(**change))


@pytest.mark.parametrize("wanted", [None, 2, 40])
def test_rope_tables_are_as_long_as_the_longest_request(wanted):
    """Steps may have more tokens than that, from several rows."""
    asked = ScheduleSection(max_num_seqs=4, max_num_batched_tokens=150, max_model_len=wanted)
    worker = Worker(config_of(schedule=asked))
    (cos, sin), *others = {id(layer.rope): layer.rope for layer in worker._model.attentions}.values()
    assert not others
    assert len(cos) == len(sin) == (wanted or FACTS.max_positions)
    layout = layout_of(worker, 8)
    length = wanted or FACTS.max_positions
    worker.build(layout, length)
    worker.forward(prompt_plan([1, 2, 3][: length - 1]))
    assert worker.sample(None)[0].wait().fault is None
    assert worker._runner.state.length == length


def test_one_backend_serves_layers_of_several_kinds_and_each_reason_is_told():
    facts = dataclasses.replace(FACTS, windows=(None, 8))
    worker = Worker(config_of({"facts": facts}))
    assert len({id(backend) for backend in worker._backends.values()}) == 1
    assert worker.hello().backends == {"attention": "cpu (the first choice here)"}


class Even(CPUAttention):
    name = "even"

    def pages(self, spec):
        return (2, 4)


class Odd(CPUAttention):
    name = "odd"

    def pages(self, spec):
        return (3,)


def test_backends_that_share_no_page_size_are_named():
    spec = KVSpec(2, 8, 8, 4)
    backends = {"a": Even(), "b": Odd()}
    with pytest.raises(ConfigError, match=r"share no page size: .* pages of even 2, 4; odd 3"):
        common_pages(backends, (("a", spec), ("b", spec)))
    assert common_pages(backends, (("b", spec),)) == (3,)


def test_a_worker_freezes_nobodys_objects():
    before = gc.get_freeze_count()
    worker = Worker(config_of())
    worker.hello()
    worker.close()
    assert gc.get_freeze_count() <= before  # what was frozen before may end
    assert gc.isenabled()


def test_the_cpu_tells_memory_and_its_name():
    cpu = PLATFORMS.load("cpu")()
    assert "cores" in cpu.describe()
    assert 0 < cpu.used_memory() <= cpu.peak_memory() * 1.01
    assert cpu.free_memory() > 0
    assert cpu.supports(torch.int32) is not None
    kept = cpu.allocate(1000)
    assert kept.count_nonzero() == 0
    assert kept.numel() == 1000
    event = cpu.event()
    event.record()
    cpu.stream().wait_event(event)
    assert event.query()


def test_a_worker_that_cannot_be_made_leaves_nothing_behind(monkeypatch):
    class Compiling:
        closed = False

        def ready(self):
            return 0.0

        def close(self):
            self.closed = True

    compiling = Compiling()
    monkeypatch.setattr("octavo.device.worker.worker.ahead_of", lambda *_: compiling)
    with pytest.raises(Exception, match="none"):
        Worker(config_of(model={"load_format": "none"}))
    assert compiling.closed
