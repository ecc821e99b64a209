"""The ring's words, against their twin; the GPU writes them to pinned memory."""

import pytest
import torch

from tests.unit.device.kernels.interpreter import HERE, interpreted  # before any kernel

pytestmark = interpreted


@pytest.mark.parametrize("rows", [1, 3, 300])
def test_words_reach_the_slot_that_the_clock_names(rows):
    from octavo.device.kernels import publish

    torch.manual_seed(rows)
    tokens = torch.randint(0, 200000, (rows,), device=HERE)
    scores = torch.randn(rows, device=HERE)
    scores[rows // 2] = float("nan")
    scores[-1] = float("-inf")
    living = torch.rand(rows, device=HERE) < 0.8
    counts = (living & scores.isfinite()).long()
    clock = torch.tensor([publish.TAGS - 2], device=HERE)
    twin = clock.clone()
    ring = torch.zeros(4, rows + 5, dtype=torch.int64, pin_memory=HERE.type == "cuda")
    for tag in (publish.TAGS - 2, publish.TAGS - 1, 0, 1):
        publish.store_words(tokens, counts, living, scores, clock, ring)
        want = publish.words(tokens, counts, living, scores, twin)
        if HERE.type == "cuda":
            torch.cuda.synchronize()
        assert torch.equal(ring[tag & 3, : rows + 1], want.cpu())
        assert (ring[tag & 3, 1:rows] >> 32 == tag).all()
    assert torch.equal(clock, twin)
