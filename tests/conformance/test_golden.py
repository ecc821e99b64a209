"""The embedded model in float32, greedy, says what Transformers was recorded to say (golden/smollm2.json)."""

import json
from pathlib import Path

import pytest
import torch

from conformance.driver import Sequence, model_of

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "smollm2.json").read_text())
pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def model():
    return model_of(None)


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["prompt"])
def test_the_recorded_ids(model, case):
    row = Sequence(model)
    said = [int(row.feed(case["prompt_ids"])[-1].argmax())]
    while len(said) < len(case["output_ids"]):
        said.append(int(row.feed(said[-1:])[-1].argmax()))
    assert said == case["output_ids"]


def test_bfloat16_is_float32_but_for_rounding(model):
    """The packed weights and the norms of few rows, over a prompt and single tokens."""
    narrow = model_of(None, torch.bfloat16)
    for case in GOLDEN[:2]:
        ids = case["prompt_ids"] + case["output_ids"]
        want = Sequence(model).feed(ids)
        row = Sequence(narrow)
        got = torch.cat([row.feed(ids[:30]), *(row.feed([token]) for token in ids[30:])])
        assert (got - want).std() < 0.05 * want.std()
        assert (got.argmax(-1) == want.argmax(-1)).float().mean() > 0.85
