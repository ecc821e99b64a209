"""The two words a worker says while the engine boots: Hello (what it needs and can do) and Ready (what it has)."""

from msgspec import Struct

from octavo.wire.kv import KVSpec


class Limits(Struct, frozen=True, array_like=True, gc=False):
    """Bounds of the device's stages; the front refuses what exceeds them, so that no request meets them later.

    ``adapters``: LoRA adapters that one step may mix, 0 where the device has none. ``media``: it takes features.
    ``drafts``: draft tokens of a row that one step verifies, 0 where the device verifies none.
    """

    stop_ids: int = 128
    bad_words: int = 128
    bias: int = 1024
    logprobs: int = -1
    adapters: int = 0
    media: bool = False
    drafts: int = 0


class Hello(Struct, frozen=True, array_like=True, gc=False):
    """What a worker says after its weights are loaded.

    ``layers``: every attention layer's name and spec, in the model's order. ``vocab``: width of the logits.
    ``page_sizes``: tokens a page that the attention backends can walk, the preferred first. ``memory``: bytes that the
    KV cache may take (after weights, activations and a margin). ``backends``: what was chosen, and why, for people.
    ``weights`` and ``activations``: bytes, for the memory table; so are, where a device has memory of its own,
    ``total``, ``others`` (other processes and the driver), ``graphs`` and ``margin``.
    ``phases``: seconds of each phase of the start.
    """

    platform: str
    device: str
    dtype: str
    vocab: int
    layers: tuple[tuple[str, KVSpec], ...]
    page_sizes: tuple[int, ...]
    memory: int
    weights: int
    activations: int
    limits: Limits = Limits()
    backends: dict[str, str] = {}
    phases: dict[str, float] = {}
    total: int = 0
    others: int = 0
    graphs: int = 0
    margin: int = 0


class Ready(Struct, frozen=True, array_like=True, gc=False):
    """What the engine core says to its clients when it can serve."""

    max_model_len: int
    vocab: int
    page: int
    pages: int
    kv_tokens: int
    limits: Limits
    backends: dict[str, str] = {}
    phases: dict[str, float] = {}
