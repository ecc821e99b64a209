"""The scheduler over a tiny real model: preempted, chunked, prefix-cached, batched, pipelined or in bursts, every
request says what it says alone, with drafts and without."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.config.engine import (
    CacheSection,
    DeviceSection,
    EngineConfig,
    ModelSection,
    ScheduleSection,
    Speculation,
    TextSection,
)
from octavo.config.facts import ModelFacts
from octavo.core.engine.core import EngineCore
from octavo.testing.cores import Drawn
from octavo.wire.arrays import pack_tokens, unpack_tokens
from octavo.wire.request import EngineRequest, Sampling

VOCAB, LONGEST, PAGE = 71, 64, 4


def core_of(windows=(), pages=17, burst=1, **schedule) -> EngineCore:
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
            schedule=ScheduleSection(max_model_len=LONGEST, burst_ms=float(burst > 1), **schedule),
            device=DeviceSection(threads=1),
        ),
        pace=Drawn(burst),
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


@settings(max_examples=2)
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


class Informed:
    """A drafter that knows what each request will say, and is wrong now and then."""

    def __init__(self, requests: list[EngineRequest], said: dict[int, list[int]], seed: int):
        self.all = {request.handle: [*unpack_tokens(request.tokens), *said[request.handle]] for request in requests}
        self.rng = np.random.default_rng(seed)
        self.guessed = 0

    def propose(self, request, tokens, most: int) -> list[int]:
        drafts = [int(token) for token in self.all[request.wire.handle][len(tokens) : len(tokens) + most]]
        self.guessed += len(drafts)
        return [token if self.rng.random() < 0.8 else int(self.rng.integers(VOCAB)) for token in drafts]


@settings(max_examples=1)
@given(st.integers(0, 2**31))
@pytest.mark.parametrize("windows", [(), (None, 6)])
def test_the_same_tokens_with_drafts(windows, seed):
    """Greedy and sampled, with every stage that looks back, whoever guesses."""
    rng = np.random.default_rng(seed)
    requests = [
        msgspec.structs.replace(
            request,
            sampling=msgspec.structs.replace(
                request.sampling,
                frequency_penalty=float(rng.choice((0.0, 0.4))),
                bad_words=[(), ((5,), (3, 9))][int(rng.integers(2))],
            ),
            min_length=request.limit - int(rng.integers(0, 8)),
        )
        for request in requests_of(seed)
    ]
    roomy = core_of(windows, pages=200, max_num_seqs=1, max_num_batched_tokens=256)
    alone = run(roomy, requests)
    roomy.close()
    pages = 17 if not windows else 34
    ngram = Speculation(method="ngram", tokens=4, shortest=1, longest=3)
    for options, each, informed in (
        ({"max_num_seqs": 4, "max_num_batched_tokens": 9}, 99, True),
        ({"max_num_seqs": 4, "max_num_batched_tokens": 64}, 99, False),
        ({"max_num_seqs": 6, "max_num_batched_tokens": 64, "depth": 2, "burst": 2}, 2, True),
    ):
        core = core_of(windows, pages=pages, speculation=ngram, **options)
        drafter = Informed(requests, alone, seed)
        if informed:
            core.scheduler._planner.drafts.drafters = [drafter]
        assert run(core, requests, each) == alone, options
        assert drafter.guessed or not informed or "depth" in options
        core.scheduler.book.check()
        pool = core.scheduler.book.kv.pool
        assert pool.free == pool.pages - 1
        core.close()
