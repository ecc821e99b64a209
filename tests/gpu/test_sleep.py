"""A GPU's memory is given back and taken again; tokens stay what they were. Level 1 keeps weights on the host."""

import numpy as np
import pytest
import torch

from octavo.config.engine import CacheSection, DeviceSection, EngineConfig, ModelSection, ScheduleSection, TextSection
from octavo.config.facts import ModelFacts
from octavo.core.engine.core import EngineCore
from octavo.wire.arrays import pack_tokens
from octavo.wire.request import EngineRequest, Sampling

VOCAB, LONGEST, PAGE = 71, 96, 16
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here"),
]


def core_of():
    facts = ModelFacts(
        architecture="MistralForCausalLM", vocab=VOCAB, hidden=64, layers=2, q_heads=4, kv_heads=2, head_dim=16, ffn=96,
        max_positions=LONGEST, dtype="float32",
    )  # fmt: skip
    core = EngineCore(
        EngineConfig(
            model=ModelSection(path="", facts=facts, dtype="float32", load_format="dummy", seed=3),
            text=TextSection(tokenizer="", served_names=("tiny",)),
            cache=CacheSection(page=PAGE, memory=256 << 20),
            schedule=ScheduleSection(max_model_len=LONGEST, max_num_seqs=8),
            device=DeviceSection(platform="cuda"),
        )
    )
    core.start()
    return core


def tokens_of(core, nap=None):
    """What ten requests say; ``nap`` is called in the middle."""
    rng, said = np.random.default_rng(1), {}
    for handle in range(10):
        prompt = rng.integers(0, VOCAB, 5 + 4 * handle).tolist()
        sampling = Sampling(seed=handle, temperature=0.8 * (handle % 2))
        core.add([EngineRequest(handle, pack_tokens(prompt), sampling, len(prompt) + 30)])
        said[handle] = []
    for step in range(2000):
        for reply in core.poll(0.05):
            at = 0
            for handle, count in zip(reply.handles.tolist(), reply.counts.tolist(), strict=True):
                said[handle] += reply.tokens[at : at + count].tolist()
                at += count
        if nap is not None and step == 12:
            nap()
        if not (core.scheduler.unfinished or core.outstanding):
            return said
    raise AssertionError("the requests did not end")


@pytest.mark.parametrize("level", [1, 2])
def test_a_nap_in_the_middle(level):
    core = core_of()
    try:
        want = tokens_of(core)

        def nap():
            told = core.call("sleep", level)
            assert told["before"] - told["after"] >= 256 << 20
            assert core.call("wake", ["weights"]) is False
            assert core.call("wake", ["kv_cache"]) is True
            core.call("resume")

        assert tokens_of(core, nap) == want
        assert tokens_of(core) == want
    finally:
        core.close()
