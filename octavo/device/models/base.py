"""CausalLM: what the runner needs of a decoder, and the frame that every decoder here has in common."""

from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from torch import Tensor

from octavo.config.facts import ModelFacts
from octavo.device.layers.kit import Kit


@dataclass(slots=True)
class Hidden:
    """What a forward pass gives. ``last`` [T, H]: the residual stream after the last layer, before the final norm,
    which belongs to the head and is applied to the rows that need logits. ``taps``: layer -> [T, H], as asked for."""

    last: Tensor
    taps: dict[int, Tensor] = field(default_factory=dict)


class DecoderLayer(Protocol):
    """One layer of a decoder."""

    def __init__(self, facts: ModelFacts, kit: Kit, index: int): ...

    def __call__(self, x: Tensor) -> Tensor:
        """The residual stream [T, H] -> [T, H]."""


class CausalLM:
    """An architecture gives ``Layer``, made as ``Layer(facts, kit, index)`` and, where its checkpoints have them, other
    names and parts that are not served.

    ``renames``: (prefix in the file, prefix here). ``skips``: prefixes of tensors that this model has no use for.
    ``norm_offset``: what its norms add to their weights.

    Models and layers are plain objects that hold tensors: a call through ``nn.Module`` costs a tenth of a small step.
    """

    Layer: ClassVar[type[DecoderLayer]]
    renames: ClassVar[tuple[tuple[str, str], ...]] = ()
    skips: ClassVar[tuple[str, ...]] = ()
    norm_offset: ClassVar[float] = 0.0

    def __init__(self, facts: ModelFacts, kit: Kit):
        self.facts = facts
        model = kit.at("model")
        self.embed = model.embed("embed_tokens", facts.vocab, facts.hidden, scale=facts.embed_scale)
        self.layers = model.stack("layers", facts.layers, lambda at, i: type(self).Layer(facts, at, i))
        self.head = kit.head(
            "lm_head",
            facts.hidden,
            facts.vocab,
            norm=model.norm("norm", facts.hidden, offset=self.norm_offset),
            tied=self.embed if facts.tied else None,
            softcap=facts.logit_softcap,
        )
        self.attentions = kit.attentions

    def forward(self, ids: Tensor, embeds: Tensor | None = None) -> Hidden:
        """ids int [T] (or ``embeds`` [T, H] in their place) -> Hidden; runs under the ambient step."""
        x = self.embed(ids) if embeds is None else embeds
        for layer in self.layers:
            x = layer(x)
        return Hidden(x)

    def logits(self, hidden: Tensor, narrow: bool = False) -> Tensor:
        """Rows of ``Hidden.last`` [N, H] -> float32 [N, V]; ``narrow``: in the model's own type, if it has them so."""
        return self.head(hidden, narrow)
