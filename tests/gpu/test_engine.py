"""The whole engine on a GPU: the same tokens as on a CPU, with graphs and without, at any depth, in bursts, and no step
ever waits for the device."""

import numpy as np
import pytest
import torch

from octavo.config.engine import CacheSection, DeviceSection, EngineConfig, ModelSection, ScheduleSection, TextSection
from octavo.config.facts import ModelFacts
from octavo.core.engine.core import EngineCore
from octavo.testing.cores import Drawn
from octavo.wire.arrays import pack_tokens
from octavo.wire.request import EngineRequest, Sampling

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here"),
]
VOCAB, LONGEST, PAGE = 71, 96, 16


def core_of(windows=(), pages=200, dtype="float32", platform="cuda", eager=False, burst=1, **schedule) -> EngineCore:
    facts = ModelFacts(
        architecture="MistralForCausalLM", vocab=VOCAB, hidden=64, layers=2, q_heads=4, kv_heads=2, head_dim=16, ffn=96,
        max_positions=LONGEST, windows=windows, dtype=dtype,
    )  # fmt: skip
    slots = 2 if len(set(windows or (None, None))) == 1 else 1
    item = 4 if dtype == "float32" else 2
    core = EngineCore(
        EngineConfig(
            model=ModelSection(path="", facts=facts, dtype=dtype, load_format="dummy", seed=3),
            text=TextSection(tokenizer="", served_names=("tiny",)),
            cache=CacheSection(page=PAGE, memory=slots * pages * PAGE * 2 * 2 * 16 * item),
            schedule=ScheduleSection(max_model_len=LONGEST, burst_ms=float(burst > 1), **schedule),
            device=DeviceSection(platform=platform, enforce_eager=eager),
        ),
        pace=Drawn(burst),
    )
    core.start()
    return core


def run(core: EngineCore, requests: list[EngineRequest], each: int = 99) -> dict[int, list[int]]:
    """What they say, ``each`` of them added at a time."""
    said: dict[int, list[int]] = {request.handle: [] for request in requests}
    waiting, running = list(requests), set()
    while waiting or running:
        now, waiting = waiting[:each], waiting[each:]
        core.add(now)
        running |= {request.handle for request in now}
        for reply in core.poll(1.0):
            at = 0
            for handle, count in zip(reply.handles.tolist(), reply.counts.tolist(), strict=True):
                said[handle] += reply.tokens[at : at + count].tolist()
                at += count
            for delta in reply.deltas:
                assert delta.error is None, delta.error
                if delta.finish is not None:
                    running.discard(delta.handle)
    return said


def requests_of(seed: int, count: int = 9, plain: bool = False) -> list[EngineRequest]:
    rng = np.random.default_rng(seed)
    shared = rng.integers(0, VOCAB, 40).tolist()
    made = []
    for handle in range(count):
        prompt = shared[: int(rng.integers(0, 41))] + rng.integers(0, VOCAB, rng.integers(1, 14)).tolist()
        more = {} if plain else {
            "top_k": int(rng.choice((0, 8))),
            "top_p": float(rng.choice((1.0, 0.9))),
            "min_p": float(rng.choice((0.0, 0.02))),
            "repetition_penalty": float(rng.choice((1.0, 1.0, 1.2))),
            "bad_words": ((3,), (5, 8)) if rng.random() < 0.2 else (),
            "logprobs": [None, None, 2][int(rng.integers(3))],
            "prompt_logprobs": [None, None, 1][int(rng.integers(3))],
        }  # fmt: skip
        sampling = Sampling(seed=int(rng.integers(2**62)), temperature=float(rng.choice((0.0, 0.7, 1.0))), **more)
        end = len(prompt) + int(rng.integers(1, 30))
        stops = tuple(rng.integers(0, VOCAB, 2).tolist())
        least = len(prompt) + int(rng.integers(0, 4))
        made.append(
            EngineRequest(handle, pack_tokens(prompt), sampling, end, stops=stops, eos=1, every=1, min_length=least)
        )
    return made


@pytest.mark.parametrize("windows", [(), (None, 9)])
def test_the_same_tokens_as_a_cpu_however_it_is_scheduled(windows):
    for seed in (1, 2):
        requests = requests_of(seed)
        cpu = core_of(windows, platform="cpu", max_num_seqs=1, max_num_batched_tokens=256)
        want = run(cpu, requests)
        cpu.close()
        for options, each in (
            ({"max_num_seqs": 4, "max_num_batched_tokens": 64, "eager": True}, 99),
            ({"max_num_seqs": 4, "max_num_batched_tokens": 9}, 99),
            ({"max_num_seqs": 6, "max_num_batched_tokens": 64, "depth": 2}, 2),
            ({"max_num_seqs": 3, "max_num_batched_tokens": 16, "burst": 4}, 3),
            ({"max_num_seqs": 5, "max_num_batched_tokens": 7, "depth": 3, "burst": 3, "pages": 20}, 1),
        ):
            core = core_of(windows, **options)
            assert run(core, requests, each) == want, options
            core.close()


def test_bfloat16_graphs_are_eager_and_depth_2_is_depth_1():
    requests = requests_of(5, 6, plain=True)
    said = []
    for options in ({"eager": True}, {}, {"depth": 2}, {"burst": 4}):
        core = core_of(dtype="bfloat16", max_num_seqs=8, max_num_batched_tokens=512, **options)
        said.append(run(core, requests))
        core.close()
    assert all(one == said[0] for one in said)


def test_no_step_waits_for_the_device(monkeypatch):
    core = core_of(max_num_seqs=6, max_num_batched_tokens=64, depth=2, burst=2)
    run(core, requests_of(1))
    run(core, requests_of(1, plain=True))

    def waits(*args, **kwargs):
        raise AssertionError("the host waits for the device")

    monkeypatch.setattr(torch.cuda.Event, "synchronize", waits)
    monkeypatch.setattr(torch.cuda.Stream, "synchronize", waits)
    monkeypatch.setattr(torch.cuda, "synchronize", waits)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for seed in (1, 3, 4):
            run(core, requests_of(seed), each=2)
            run(core, requests_of(seed, plain=True), each=3)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    core.close()


def test_what_does_not_fit_is_said_with_what_would():
    from octavo.errors import OutOfMemory

    with pytest.raises(OutOfMemory, match=r"at most --kv-cache-memory \d+ would"):
        core_of(pages=1 << 30, max_num_seqs=4, max_num_batched_tokens=64)
