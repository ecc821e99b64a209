"""Every Triton kernel compiles for compute capability 9.0, fits it, and keeps to the rules of ``kernels.launch``."""

import re
from functools import lru_cache
from importlib.util import find_spec

import pytest
import torch

from octavo.config.facts import ModelFacts
from octavo.device.kernels.variants import Variant
from octavo.device.sampling.sampler import Draw
from octavo.device.worker.variants import needed
from tests.ptx.compiled import SHARED, Made, compiled

# not imported here: whether its interpreter is on is decided then
pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")

#: Rows of decode steps, and (tokens, rows) of steps with pieces of prompt.
SIZES = (1, 8, 32, 64, 128, 256)
MIXED = ((64, 8), (2048, 64))
MODELS = {
    "qwen3-0.6b": ModelFacts(
        architecture="Qwen3ForCausalLM", vocab=151936, hidden=1024, layers=28, q_heads=16, kv_heads=8, head_dim=128,
        ffn=3072, max_positions=40960, tied=True,
    ),
    "qwen3-8b": ModelFacts(
        architecture="Qwen3ForCausalLM", vocab=151936, hidden=4096, layers=36, q_heads=32, kv_heads=8, head_dim=128,
        ffn=12288, max_positions=40960,
    ),
    "gemma3-1b": ModelFacts(
        architecture="Gemma3ForCausalLM", vocab=262144, hidden=1152, layers=26, q_heads=4, kv_heads=1, head_dim=256,
        ffn=6912, max_positions=32768, tied=True, act="gelu_tanh", windows=(512,) * 25 + (None,),
    ),
    "llama3-8b": ModelFacts(
        architecture="LlamaForCausalLM", vocab=128256, hidden=4096, layers=32, q_heads=32, kv_heads=8, head_dim=128,
        ffn=14336, max_positions=131072,
    ),
}  # fmt: skip
DRAWS = (Draw.GREEDY, Draw.WARM, Draw.CUT)
#: Bytes of registers that a thread may keep in memory.
SPILL = 128


@lru_cache
def variants(model: str, sizes: tuple[int, ...] = SIZES, draws: tuple[Draw, ...] = DRAWS) -> tuple[Variant, ...]:
    return tuple(
        needed(
            MODELS[model], torch.bfloat16, max_num_seqs=256, max_model_len=4096, sizes=sizes, draws=draws, mixed=MIXED
        )
    )


def one_of_each(found: tuple[Variant, ...]) -> list[Variant]:
    """The first variant of each kernel; of decode the one that compiles soonest."""
    firsts: dict[str, Variant] = {}
    for one in sorted(found, key=lambda one: dict(one.options).get("TILE", 0) * dict(one.options).get("SPLITS", 1)):
        firsts.setdefault(one.name, one)
    return list(firsts.values())


def check(made: Made) -> None:
    options = dict(made.variant.options)
    assert made.error is None, f"{made}: {made.error}"
    assert made.shared <= SHARED, f"{made} wants {made.shared} bytes of shared memory"
    assert made.stack <= SPILL, f"{made} spills {made.stack} bytes a thread"
    waits = [match.start() for match in re.finditer(r"griddepcontrol\.wait", made.ptx)]
    releases = [match.start() for match in re.finditer(r"griddepcontrol\.launch_dependents", made.ptx)]
    assert (len(waits), len(releases)) == ((1, 1) if options["PDL"] else (0, 0)), made
    if options["PDL"]:
        assert (releases[0] < waits[0]) == (options["PDL"] == 2), made
        # nothing may be written, and nothing is counted, before the wait
        assert not re.search(r"\b(st\.global|atom\.global|red\.global)", made.ptx[: waits[0]]), made
    if made.variant.name == "tile":
        assert ("wgmma.mma_async" if options["BM"] >= 64 else "mma.sync") in made.ptx, made
        asked = re.findall(r"prefetch\.global\.L2", made.ptx[: waits[0] if waits else None])
        assert bool(asked) == (options["AHEAD"] > 0), made
    if made.variant.name in ("decode", "pieces"):
        assert re.search(r"wgmma\.mma_async|mma\.sync", made.ptx), made


def test_every_kernel_once():
    found = one_of_each(variants("qwen3-0.6b", (1, 8), (Draw.WARM, Draw.CUT)))
    assert len(found) > 12
    (tile,) = (one for one in found if one.name == "tile")
    found.append(tile._replace(options=tuple((dict(tile.options) | {"AHEAD": 8}).items())))
    for made in compiled(found):
        check(made)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("model", MODELS)
def test_every_variant_of_a_model(model):
    for made in compiled(variants(model)):
        check(made)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("rows", [16, 32, 64, 128, 256])
def test_what_is_tried_to_tune_a_model(rows):
    """A choice that does not fit is left out where it is measured: it may not be most of them."""
    from octavo.bench import tune
    from octavo.device.kernels import tuned

    facts = MODELS["qwen3-0.6b"]
    keys = [
        key
        for key in tune.questions(facts, torch.bfloat16, rows)
        if (key.rows == rows if isinstance(key, tuned.Linear) else key.pairs == rows * facts.kv_heads)
    ]
    made = compiled(tune.variants(keys, facts, torch.bfloat16))
    for one in made:
        assert one.error is None, f"{one}: {one.error}"
        if one.shared <= SHARED and one.stack == 0:
            check(one)
    assert sum(one.shared > SHARED or one.stack > 0 for one in made) <= len(made) // 10
