"""Products and functions of rows whose bits do not depend on how many rows come together (``--deterministic``).

Libraries choose how they add by the number of rows, and vector code rounds a function's last numbers otherwise than the
rest. So on a CPU rows go through in blocks of one size, the last one filled up, and functions in pieces that one thread
takes whole. The idea and its name, batch invariance: https://thinkingmachines.ai/blog/defeating-nondeterminism-in-llm-inference/
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad

#: Rows of a block.
ROWS = 32
#: Numbers that torch gives to one thread whole.
GRAIN = 32768


def by_blocks(f: Callable[[Tensor, Tensor | None], Tensor], x: Tensor, add: Tensor | None = None) -> Tensor:
    """``f`` of x [T, K] and ``add`` [T, N], a row at a time as far as results go."""
    out = []
    for low in range(0, len(x), ROWS):
        part = x[low : low + ROWS]
        more = None if add is None else add[low : low + ROWS]
        missing = ROWS - len(part)
        if missing:
            part = pad(part, (0, 0, 0, missing))
            more = None if more is None else pad(more, (0, 0, 0, missing))
        out.append(f(part, more)[: ROWS - missing])
    return out[0] if len(out) == 1 else torch.cat(out)


def pieces(x: Tensor) -> Iterator[slice]:
    """Of x [n, ...]: rows that are worked on by one thread, one row at least."""
    each = max(1, GRAIN * len(x) // max(x.numel(), 1))
    for low in range(0, len(x), each):
        yield slice(low, low + each)
