"""What a model's steps launch, listed without running them: every kernel, and five of them a layer."""

from collections import Counter
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch

from octavo.config.facts import ModelFacts
from octavo.device.kernels.launch import taken
from octavo.device.kernels.variants import Pointer
from octavo.device.runner import decode, mixed
from octavo.device.runner.later import AsyncRunner
from octavo.device.sampling.sampler import Draw
from octavo.device.worker import variants
from octavo.device.worker.variants import needed, walk

# not imported here: whether its interpreter is on is decided then
pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")
QWEN = ModelFacts(
    architecture="Qwen3ForCausalLM", vocab=151936, hidden=1024, layers=1, q_heads=16, kv_heads=8, head_dim=128,
    ffn=3072, max_positions=40960, tied=True,
)  # fmt: skip
GEMMA = ModelFacts(
    architecture="Gemma3ForCausalLM", vocab=262144, hidden=1152, layers=2, q_heads=4, kv_heads=1, head_dim=256,
    ffn=6912, max_positions=32768, tied=True, act="gelu_tanh", windows=(512, None),
)  # fmt: skip


def launches(facts: ModelFacts, rows: int, draw: Draw = Draw.GREEDY) -> Counter:
    """Kernels, by name, of one decode step; "product" is the library's."""
    found: Counter = Counter()

    def take(kernel, grid, args, pdl, options):
        found["product" if kernel is None else kernel.fn.__name__] += 1
        for arg in args:
            if isinstance(arg, torch.Tensor) and not arg.is_floating_point():
                arg.zero_()

    with taken(take):
        walk(facts, torch.bfloat16, max_num_seqs=rows, max_model_len=1024, sizes=(rows,), draws=(draw,))
    return found


def a_layer(facts: ModelFacts, rows: int) -> Counter:
    """What one layer more adds."""
    more = replace(facts, layers=facts.layers + 1, windows=facts.windows + facts.windows[-1:])
    return launches(more, rows) - launches(facts, rows)


@pytest.mark.parametrize("rows", [8, 64])
def test_five_kernels_a_layer(rows):
    assert a_layer(QWEN, rows) == {"tile": 4, "decode": 1}


def test_one_row_has_its_splits_merged_by_a_kernel():
    assert a_layer(QWEN, 1) == {"gemv": 4, "decode": 1, "merge": 1}


@pytest.mark.parametrize("facts", [QWEN, GEMMA], ids=["qwen", "gemma"])
def test_variants_of_a_model(facts):
    sizes = {"max_num_seqs": 64, "max_model_len": 1024, "sizes": (1, 8), "mixed": ((64, 4),)}
    found = needed(facts, torch.bfloat16, **sizes)
    assert len(set(found)) == len(found)
    names = {one.name for one in found}
    assert {"gemv", "tile", "decode", "ready", "pieces", "inputs", "slots", "commit", "embed"} <= names
    assert needed(replace(facts, layers=9, windows=facts.windows * 4), torch.bfloat16, **sizes) == found
    for one in found:
        options = dict(one.options)
        assert options.get("launch_pdl", False) == bool(options["PDL"])
        assert all(isinstance(arg, Pointer | int | float | bool) for arg in one.args)
    plain = needed(facts, torch.bfloat16, overlap=False, **sizes)
    assert all(dict(one.options)["PDL"] == 0 for one in plain)
    windows = {dict(one.options)["WINDOW"] for one in found if one.name == "decode"}
    assert windows == ({False} if facts is QWEN else {True, False})


def test_float32_has_the_library_multiply():
    assert "tile" not in {one.name for one in needed(QWEN, torch.float32, max_num_seqs=8, max_model_len=64)}


def test_variants_are_the_same_however_far_the_host_is_ahead_and_whatever_ends_an_answer(monkeypatch):
    sizes = {"max_num_seqs": 16, "max_model_len": 256, "sizes": (1, 8), "mixed": ((64, 4),)}

    def listed() -> list:
        return [(one.name, one.options) for one in needed(QWEN, torch.bfloat16, **sizes)]

    want = listed()

    class Far(AsyncRunner):
        def __init__(self, *args, **options):
            super().__init__(*args, **options | {"lead": 18})

    monkeypatch.setattr(variants, "AsyncRunner", Far)
    for module in (decode, mixed):
        monkeypatch.setattr(module, "stop_columns", lambda state: 4)
    assert listed() == want
