"""--deterministic: tokens and log-probabilities, to the bit, whoever is beside a request and however it is cut into
steps, cached, preempted or drafted."""

from functools import lru_cache

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
from octavo.testing.cores import Drawn, Told, hear
from octavo.wire.arrays import pack_tokens
from octavo.wire.request import EngineRequest, Sampling

VOCAB, LONGEST = 71, 400
NGRAM = Speculation(method="ngram", tokens=3, shortest=1, longest=2)


def core_of(dtype, window=None, page=16, pages=200, burst=1, platform="cpu", **schedule) -> EngineCore:
    """Wide enough that threads share its functions, at places that are no multiples of anything."""
    facts = ModelFacts(
        architecture="Gemma3ForCausalLM" if window else "Qwen3ForCausalLM", vocab=VOCAB, hidden=48, layers=2,
        q_heads=4, kv_heads=2, head_dim=24, ffn=1110, max_positions=LONGEST, dtype=dtype,
        windows=(window, None) if window else (), attn_softcap=20.0 if window else None,
        act="gelu_tanh" if window else "silu",
    )  # fmt: skip
    item = 4 if dtype == "float32" else 2
    core = EngineCore(
        EngineConfig(
            model=ModelSection(path="", facts=facts, dtype=dtype, load_format="dummy", seed=3),
            text=TextSection(tokenizer="", served_names=("tiny",)),
            cache=CacheSection(page=page, memory=(1 if window else 2) * pages * page * 2 * 2 * 24 * item),
            schedule=ScheduleSection(max_model_len=LONGEST, burst_ms=float(burst > 1), **schedule),
            device=DeviceSection(platform=platform, deterministic=True, threads=2),
        ),
        pace=Drawn(burst),
    )
    core.start()
    return core


def run(core: EngineCore, requests: list[EngineRequest], each: int = 99) -> dict[int, Told]:
    told: dict[int, Told] = {request.handle: Told() for request in requests}
    waiting = list(requests)
    while waiting or any(one.finish is None for one in told.values()):
        now, waiting = waiting[:each], waiting[each:]
        core.add(now)
        hear(core.poll(1.0), told)
    assert not any(one.error for one in told.values())
    return told


def bits(told: Told) -> tuple:
    """Tokens and log-probabilities, whether they came one by one or several at once."""
    parts = [[getattr(one, name).tobytes() for one in told.logprobs] for name in ("ids", "values", "ranks")]
    return told.tokens, *map(b"".join, parts)


def requests_of(seed: int, count: int = 4) -> list[EngineRequest]:
    rng = np.random.default_rng(seed)
    shared = rng.integers(0, VOCAB, 300).tolist()
    made = []
    for handle in range(count):
        long = 40 if handle else 300
        prompt = shared[: int(rng.integers(0, long + 1))] + rng.integers(0, VOCAB, rng.integers(1, 14)).tolist()
        more = {
            "top_k": int(rng.choice((0, 8))),
            "top_p": float(rng.choice((1.0, 0.9))),
            "repetition_penalty": float(rng.choice((1.0, 1.2))),
            "temperature": float(rng.choice((0.0, 0.7))),
        }
        sampling = Sampling(seed=int(rng.integers(2**62)), logprobs=3, **more)
        made.append(
            EngineRequest(handle, pack_tokens(prompt), sampling, len(prompt) + int(rng.integers(1, 12)), every=1)
        )
    return made


@lru_cache(maxsize=8)
def alone(dtype, window, seed, platform="cpu"):
    core = core_of(dtype, window, platform=platform, max_num_seqs=1, max_num_batched_tokens=512)
    found = [bits(run(core, [request])[request.handle]) for request in requests_of(seed)]
    core.close()
    return found


def check(dtype, window, seed, platform="cpu", each=99, **options):
    core = core_of(dtype, window, platform=platform, **options)
    told = run(core, requests_of(seed), each)
    core.close()
    assert [bits(told[handle]) for handle in sorted(told)] == alone(dtype, window, seed, platform), options


WAYS = (
    {"max_num_seqs": 4, "max_num_batched_tokens": 9, "each": 2},
    {"max_num_seqs": 6, "max_num_batched_tokens": 64, "depth": 2, "pages": 60},
    {"max_num_seqs": 5, "max_num_batched_tokens": 33, "depth": 2, "burst": 3, "page": 4, "pages": 240, "each": 3},
)


@pytest.mark.parametrize(
    ("dtype", "window"),
    [
        ("float32", None),
        ("bfloat16", 50),
        pytest.param("float32", 50, marks=pytest.mark.slow),
        pytest.param("bfloat16", None, marks=pytest.mark.slow),
    ],
)
def test_any_schedule_gives_the_bits_of_each_alone(dtype, window):
    for way in WAYS:
        check(dtype, window, 0, **way)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_drafts_change_no_bit(dtype):
    check(dtype, None, 0, max_num_seqs=4, max_num_batched_tokens=40, speculation=NGRAM)


@settings(max_examples=2)
@given(st.integers(0, 2**31), st.integers(1, 8), st.integers(0, 90), st.sampled_from((1, 2)), st.integers(1, 6))
def test_any_cut_and_any_neighbours(seed, rows, more, depth, each):
    check("float32", None, seed, max_num_seqs=rows, max_num_batched_tokens=rows + more, depth=depth, each=each)
