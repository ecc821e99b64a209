"""From a checkpoint to a model that can run."""

import os

import torch

from octavo.common.log import logger
from octavo.common.words import nearest
from octavo.config.engine import ModelSection
from octavo.device.layers.kit import Kit
from octavo.device.models.base import CausalLM
from octavo.device.models.registry import MODELS
from octavo.device.quant.base import SCHEMES
from octavo.device.weights.dummy import DummySource
from octavo.device.weights.gguf import GGUFSource
from octavo.device.weights.memory import check
from octavo.device.weights.safetensors import SafetensorsSource
from octavo.device.weights.source import Source
from octavo.errors import CheckpointError, ConfigError

LOAD_FORMATS = ("auto", "safetensors", "gguf", "dummy")
#: Buffers that old checkpoints hold and no model reads.
_BUFFERS = (".rotary_emb.inv_freq", ".masked_bias", ".attn.bias")
_log = logger(__name__)


@torch.inference_mode()
def load(
    section: ModelSection,
    device: torch.device,
    dtype: torch.dtype,
    positions: int | None = None,
    fixed: bool = False,
) -> CausalLM:
    """Build the model of ``section`` and fill it, tensor by tensor; memory holds each weight once. ``positions``: the
    longest sequence that there will be, None for the longest that the model can do. ``fixed``: no row's bits depend on
    the number of rows.

    Raises ``CheckpointError`` that names file and tensor, ``OutOfMemory`` before anything large is allocated.
    """
    facts = section.facts
    positions = positions or facts.max_positions
    check(facts, device, dtype, positions)
    scheme = SCHEMES.load(section.quantization or "none")()
    kit = Kit(device=device, dtype=dtype, scheme=scheme, eps=facts.norm_eps, positions=positions, fixed=fixed)
    kind = MODELS.load(facts.architecture)
    model = kind(facts, kit)
    source = open_source(section, {name: slot.shape for name, slot in kit.slots.items()})
    try:
        names = _match(source, kit, kind)
        for stored_name, name in names.items():
            slot = kit.slots[name]
            source.read(stored_name, slot.target())
            slot.filled()
    finally:
        source.close()
    _log.info("loaded %d tensors of %s", len(names), facts.architecture)
    return model


def open_source(section: ModelSection, shapes: dict[str, tuple[int, ...]]) -> Source:
    """The tensors that the section names. ``shapes``: of dummy ones. Raises ``ConfigError``."""
    form, path = section.load_format, section.path
    if form not in LOAD_FORMATS:
        raise ConfigError(
            f"unknown load format {form!r}{nearest(form, LOAD_FORMATS)}; known: {', '.join(LOAD_FORMATS)}"
        )
    if form == "dummy":
        return DummySource(shapes, section.seed)
    directory = os.path.isdir(path)
    if form == "gguf" and directory:
        raise ConfigError(f"--load-format gguf needs a GGUF file, and {path} is a directory")
    if form == "safetensors" and not directory:
        raise ConfigError(f"--load-format safetensors needs a directory, and {path} is a file")
    return SafetensorsSource(path) if directory else GGUFSource(path)


def _match(source: Source, kit: Kit, kind: type[CausalLM]) -> dict[str, str]:
    """Name in the source -> name of the slot, in the source's order; every slot is filled and nothing is left over."""
    found: dict[str, str] = {}
    wanted = dict(kit.slots)
    for stored_name, stored in source.tensors.items():
        name = _renamed(stored_name, kind)
        if name in kit.unread or name.startswith(kind.skips) or name.endswith(_BUFFERS):
            continue
        slot = wanted.pop(name, None)
        if slot is None:
            if name in kit.slots:
                raise CheckpointError(f"{stored.file}: tensor {stored.origin!r} is there twice")
            hint = nearest(name, wanted)
            raise CheckpointError(f"{stored.file}: tensor {stored.origin!r} has no place in the model{hint}")
        if slot.shape != stored.shape:
            raise CheckpointError(
                f"{stored.file}: tensor {stored.origin!r} has shape {list(stored.shape)}; "
                f"the configuration asks for {list(slot.shape)}"
            )
        found[stored_name] = name
    if wanted:
        first = next(iter(wanted))
        where = next(iter({stored.file for stored in source.tensors.values()}), "the checkpoint")
        more = f" (and {len(wanted) - 1} more)" if len(wanted) > 1 else ""
        raise CheckpointError(f"{where}: tensor {first!r} is missing{more}")
    return found


def _renamed(name: str, kind: type[CausalLM]) -> str:
    for prefix, ours in kind.renames:
        if name.startswith(prefix):
            return ours + name.removeprefix(prefix)
    return name
