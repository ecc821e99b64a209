"""BlockTables: which pages each row holds, a table a KV group."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from octavo.common.math import cdiv
from octavo.device.batch.buffers import StagedTensor, flush, shared
from octavo.wire.plan import PageDiff


class BlockTables:
    """``groups`` tables of int32 [R + 1, P]. ``host[g]`` is what the plans said so far; the device's copy follows at
    ``flush``. Entries behind a row's own pages are stale or 0 and are never read as tokens."""

    def __init__(self, groups: int, rows: int, length: int, page: int, device: torch.device):
        width = cdiv(length, page) + 1
        self.page = page
        self.host = [np.zeros((rows + 1, width), np.int32) for _ in range(groups)]
        self._device = [
            None if shared(device) else StagedTensor((rows + 1, width), np.int32, device) for _ in range(groups)
        ]
        self._views = [
            torch.from_numpy(host) if staged is None else staged.tensor
            for host, staged in zip(self.host, self._device, strict=True)
        ]

    @property
    def width(self) -> int:
        """P."""
        return self.host[0].shape[1]

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._views)

    def __getitem__(self, group: int) -> Tensor:
        return self._views[group]

    def apply(self, diff: PageDiff) -> None:
        if not len(diff.counts):
            return
        counts, ends = diff.counts, np.cumsum(diff.counts)
        assert ends[-1] == len(diff.pages), "a page diff with pages left over"
        most = int((diff.starts + counts).max())
        assert most <= self.width, f"a row would hold {most} of {self.width} pages"
        first = diff.rows.astype(np.int64) * self.width + diff.starts - ends + counts
        places = np.repeat(first, counts) + np.arange(len(diff.pages))
        groups = None if len(self.host) == 1 else np.repeat(diff.groups, counts)
        for group, (host, staged) in enumerate(zip(self.host, self._device, strict=True)):
            at, pages = places, diff.pages
            if groups is not None:
                here = groups == group
                at, pages = places[here], diff.pages[here]
            host.reshape(-1)[at] = pages
            if staged is not None and len(at):
                staged.stage_at(at, pages)

    @property
    def staged(self) -> list[StagedTensor]:
        """The tables that live on the device alone; none on a CPU."""
        return [staged for staged in self._device if staged is not None]

    def flush(self) -> None:
        flush(self.staged)
