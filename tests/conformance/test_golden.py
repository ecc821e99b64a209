"""The embedded model in float32, greedy, says what Transformers was recorded to say (golden/smollm2.json)."""

import json
from pathlib import Path

import pytest

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
