"""The scheduler over a tiny real model: preempted, chunked, prefix-cached, batched, pipelined or in bursts, every
request says what it says alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.config.engine import CacheSection, DeviceSection, EngineConfig, ModelSection, ScheduleSection, TextSection
from octavo.config.facts import ModelFacts
from octavo.core.engine.core import EngineCore
from octavo.wire.arrays import pack_tokens
from octavo.wire.request import EngineRequest, Sampling

VOCAB, LONGEST, PAGE = 71, 64, 4


def core_of(windows=(), pages=17, **schedule) -> EngineCore:
    facts = ModelFacts(
        architecture="MistralForCausalLM", vocab=VOCAB, hidden=32, layers=2, q_heads=4, kv_heads=2, head_dim=8, ffn=48,
        max_positions=LONGEST, windows=windows, dtype="float32",
    )  # fmt: skip
    slots = 2 if len(set(windows or (None, None))) == 1 else 1
    core = EngineCore(
        EngineConfig(
            model=ModelSection(path="", facts=facts, dtype="float32", load_format="dummy", seed=3),
            text=TextSection(tokenizer="", served_names=("tiny",)),
            cache=CacheSection(page=PAGE, memory=slots * pages * PAGE * 2 * 2 * 8 * 4),
            schedule=ScheduleSection(max_model_len=LONGEST, **schedule),
            device=DeviceSection(threads=1),
        )
    )
    core.start()
    return core


def run(core: EngineCore, requests: list[EngineRequest], each: int = 99) -> dict[int, list[int]]:
    """What they say, ``each`` of them added at a time."""
    said: dict[int, list[int]] = {request.handle: [] for request in requests}
    waiting, open_handles = list(requests), set()
    while waiting or open_handles:
        now, waiting = waiting[:each], waiting[each:]
        core.add(now)
        open_handles |= {request.handle for request in now}
        for reply in core.poll(1.0):
            at = 0
            for handle, count in zip(reply.handles.tolist(), reply.counts.tolist(), strict=True):
                said[handle] += reply.tokens[at : at + count].tolist()
                at += count
            for delta in reply.deltas:
                assert delta.error is None
                if delta.finish is not None:
                    open_handles.discard(delta.handle)
    return said


def requests_of(seed: int) -> list[EngineRequest]:
    rng = np.random.default_rng(seed)
    shared = rng.integers(0, VOCAB, 14).tolist()
    made = []
    for handle in range(7):
        prompt = shared[: int(rng.integers(0, 15))] + rng.integers(0, VOCAB, rng.integers(1, 14)).tolist()
        sampling = Sampling(
            seed=int(rng.integers(2**62)),
            temperature=float(rng.choice((0.0, 1.0))),
            top_k=int(rng.choice((0, 8))),
            repetition_penalty=float(rng.choice((1.0, 1.2))),
            logprobs=[None, 2][int(rng.integers(2))],
        )
        end = len(prompt) + int(rng.integers(1, 16))
        stops = tuple(rng.integers(0, VOCAB, 2).tolist())
        made.append(EngineRequest(handle, pack_tokens(prompt), sampling, end, stops=stops, eos=1, every=1))
    return made


@settings(max_examples=4)
@given(st.integers(0, 2**31))
@pytest.mark.parametrize("windows", [(), (None, 6)])
def test_the_same_tokens_however_it_is_scheduled(windows, seed):
    requests = requests_of(seed)
    roomy = core_of(windows, pages=200, max_num_seqs=1, max_num_batched_tokens=256)
    alone = run(roomy, requests)
    roomy.close()
    pages = 17 if not windows else 34
    for options, each in (
        ({"max_num_seqs": 4, "max_num_batched_tokens": 9}, 99),
        ({"max_num_seqs": 6, "max_num_batched_tokens": 64, "depth": 2}, 2),
        ({"max_num_seqs": 3, "max_num_batched_tokens": 16, "burst": 4}, 3),
        ({"max_num_seqs": 5, "max_num_batched_tokens": 7, "depth": 3, "burst": 3}, 1),
    ):
        core = core_of(windows, pages=pages, **options)
        assert run(core, requests, each) == alone, options
        core.close()
