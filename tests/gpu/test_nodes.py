"""Nodes of a captured decode step: five kernels a layer, and few beside them."""

from collections import Counter

import pytest
import torch

from octavo.bench.step import Step, device_spans, profiler
from octavo.config.engine import CacheSection, DeviceSection, EngineConfig, ModelSection, ScheduleSection, TextSection
from octavo.config.facts import ModelFacts
from octavo.core.engine.core import EngineCore

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here"),
]


def nodes(layers: int, rows: int) -> Counter:
    """Kernels of one replay of a body, by name."""
    facts = ModelFacts(
        architecture="Qwen3ForCausalLM", vocab=1024, hidden=1024, layers=layers, q_heads=16, kv_heads=8, head_dim=128,
        ffn=3072, max_positions=512, dtype="bfloat16",
    )  # fmt: skip
    core = EngineCore(
        EngineConfig(
            model=ModelSection(path="", facts=facts, dtype="bfloat16", load_format="dummy"),
            text=TextSection(tokenizer="", served_names=("small",)),
            cache=CacheSection(page=64, memory=512 << 20),
            schedule=ScheduleSection(max_model_len=512, max_num_seqs=64),
            device=DeviceSection(platform="cuda"),
        )
    )
    try:
        core.start()
        body, _ = Step(core.worker._runner, rows, 100, 0.0, 4)._parts()
        torch.cuda.synchronize()
        with profiler(True) as profile:
            body()
            torch.cuda.synchronize()
        return Counter(name for name, _, _ in device_spans(profile.function_events))
    finally:
        core.close()


@pytest.mark.parametrize("rows", [8, 64])
def test_five_kernels_a_layer(rows):
    two, three = nodes(2, rows), nodes(3, rows)
    assert three - two == {"tile": 4, "decode": 1}
    assert sum(two.values()) <= 2 * 5 + 8, two


def test_one_row_has_its_splits_merged_by_a_kernel():
    assert nodes(3, 1) - nodes(2, 1) == {"gemv": 4, "decode": 1, "merge": 1}
