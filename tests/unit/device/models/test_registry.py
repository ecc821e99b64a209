"""A new model is one file and a row in two tables."""

import torch

from octavo.config.facts import ARCHITECTURES, ModelFacts
from octavo.device.layers.kit import Kit
from octavo.device.models.base import CausalLM
from octavo.device.models.registry import MODELS
from octavo.device.quant.plain import Plain
from octavo.testing import tiny


def test_both_tables_know_the_same_architectures():
    assert set(MODELS) == set(ARCHITECTURES) == set(tiny.ARCHITECTURES)


def test_a_models_slots_are_the_checkpoints_names_and_shapes():
    for architecture in tiny.ARCHITECTURES:
        settings = tiny.config(architecture)
        facts = ModelFacts.from_config(settings)
        kit = Kit(device=torch.device("cpu"), dtype=torch.float32, scheme=Plain(), eps=1e-6, positions=8)
        model = MODELS.load(architecture)(facts, kit)
        assert isinstance(model, CausalLM)
        want = {name: tuple(tensor.shape) for name, tensor in tiny.weights(settings).items()}
        assert {name: slot.shape for name, slot in kit.slots.items()} == want
        assert [layer.name for layer in model.attentions] == [f"model.layers.{i}.self_attn" for i in range(3)]
        assert [layer.window for layer in model.attentions] == list(facts.windows)
