"""How the KV cache is cut up: what each layer needs (KVSpec), which layers share page tables (KVGroup), the whole
(KVLayout).

Pages are per *group* in every signature: a group is a set of layers with the same kind of attention, one page table a
row. Raw memory is a list of *slots*: slot i holds the i-th layer of every group, and page p means the same bytes in
each slot whoever owns it, so one ledger counts all groups' pages. Page 0 is the null page: it is never given out,
writes of padding go there, and it stands for what has left a window.
"""

from msgspec import Struct


class KVSpec(Struct, frozen=True, array_like=True, gc=False):
    """What one attention layer keeps for a token. ``window``: tokens it looks back (itself included), None for all."""

    kv_heads: int
    k_dim: int
    v_dim: int
    item_bytes: int
    window: int | None = None

    @property
    def token_bytes(self) -> int:
        return self.kv_heads * (self.k_dim + self.v_dim) * self.item_bytes


class KVGroup(Struct, frozen=True, array_like=True, gc=False):
    """Layers with one page table. ``layers[i]`` lives in slot i."""

    spec: KVSpec
    layers: tuple[str, ...]


class KVLayout(Struct, frozen=True, array_like=True, gc=False):
    """``page``: tokens a page. ``pages``: how many there are, the null page included. ``page_bytes``: of one slot."""

    page: int
    pages: int
    page_bytes: int
    groups: tuple[KVGroup, ...]

    @property
    def slots(self) -> int:
        return max(len(group.layers) for group in self.groups)

    @property
    def total_bytes(self) -> int:
        return self.slots * self.pages * self.page_bytes
