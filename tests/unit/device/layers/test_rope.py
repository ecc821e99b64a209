"""Rope tables: rows depend on their position alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from octavo.config.facts import ModelFacts
from octavo.device.layers import rope
from octavo.device.layers.rope import table
from octavo.testing import tiny

CPU = torch.device("cpu")


def facts(kind, **changes):
    return ModelFacts.from_config(tiny.config("LlamaForCausalLM", kind, **changes)).rope


@pytest.mark.parametrize("kind", tiny.ROPES)
def test_a_longer_table_begins_with_the_shorter_one(kind):
    short, long = table(facts(kind), 16, 40, CPU), table(facts(kind), 16, 128, CPU)
    for a, b in zip(short, long, strict=True):
        assert a.shape == (40, 8)
        assert torch.equal(a, b[:40])


@given(factor=st.floats(1, 32), position=st.integers(0, 127))
def test_linear_is_an_earlier_position(factor, position):
    scaled = ModelFacts.from_config(
        tiny.config(rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": factor})
    ).rope
    cos, _ = table(scaled, 16, 128, CPU)
    frequencies = 10000.0 ** (-torch.arange(0, 16, 2).double() / 16)
    torch.testing.assert_close(cos[position].double(), (position / factor * frequencies).cos(), rtol=0, atol=2e-5)


def test_dynamic_is_plain_up_to_the_trained_length_and_turns_slower_after():
    dynamic, plain = table(facts("dynamic"), 16, 128, CPU), table(facts("default"), 16, 128, CPU)
    assert torch.allclose(dynamic[0][:32], plain[0][:32], atol=2e-6)
    assert not torch.allclose(dynamic[0][64:], plain[0][64:], atol=1e-2)


def test_dynamic_is_made_in_pieces(monkeypatch):
    whole = table(facts("dynamic"), 16, 128, CPU)
    monkeypatch.setattr(rope, "PIECE", 7)
    for a, b in zip(whole, table(facts("dynamic"), 16, 128, CPU), strict=True):
        assert torch.equal(a, b)


def test_yarn_scales_both_tables():
    cos, sin = table(facts("yarn"), 16, 8, CPU)
    want = (0.1 * torch.tensor(4.0).log() + 1).expand(8, 8)
    torch.testing.assert_close((cos**2 + sin**2).sqrt(), want)
