"""What `octavo tune` tries: tiles of a product and ways of decode, the likely ones first, few enough to be measured."""

from collections.abc import Iterator
from itertools import zip_longest

from octavo.common.math import cdiv
from octavo.device.attention.triton import SPLIT_LIMIT, Decode
from octavo.device.attention.triton import rule as decode_rule
from octavo.device.kernels import tuned
from octavo.device.kernels.joined import UNMEASURED, Tile
from octavo.device.kernels.joined import rule as tile_rule
from octavo.device.kernels.launch import AFTER, FIRST

#: Multiprocessors of an H200, and bytes of shared memory of one that tiles may take.
PROCESSORS, SHARED = 132, 216 << 10
#: All the shared memory of one.
MEMORY = 228 << 10
#: Bytes on their way that keep one multiprocessor's share of the memory busy (4.5 TB/s times 1 us over all of them).
IN_FLIGHT = 40 << 10
#: Bytes of a line of the shared cache; numbers have two.
_LINE = 64
#: Tiles of a product that are tried, of so many shapes, and ways to decode of a number of pairs.
TILES, SHAPES, WAYS = 36, 12, 56


def tiles(key: tuned.Linear) -> list[Tile]:
    """Of a product: what is in use first (where it is a tile), then at most ``TILES`` others."""
    found = [tile_rule(key.rows, key.n, key.k)] if key.rows <= UNMEASURED else []
    shapes: dict[tuple[int, int, int], dict[tuple[int, bool], Tile]] = {}
    fitting = {how for how in _tiles(key) if how.fits(key.rows, key.n, key.k)}
    for how in sorted(fitting - set(found), key=lambda how: (-_promise(how, key), how)):
        # the best of each shape with as many columns, once with lines ahead and once without
        shapes.setdefault((how.m, how.n, how.splits), {}).setdefault((how.k, how.ahead > 0), how)
    most = [list(kinds.values()) for kinds in shapes.values()][:SHAPES]
    turns = zip_longest(*most)
    return [*found, *(how for turn in turns for how in turn if how is not None)][: TILES + len(found)]


def _tiles(key: tuned.Linear) -> Iterator[Tile]:
    rows, n, k, joint = key
    gated = any(word not in ("norm", "add", "bias") for word in joint.split("+") if word)
    # 64 rows are what Hopper's own matrix instruction takes; fewer go through an older one
    for m in {min(rows, 64), 64, min(rows, 128)}:
        for width in (16, 32, 64, 128):
            if width > n or (gated and width < 32) or m * width > 128 * 128:
                continue
            for columns in (64, 128, 256, 512):
                for splits in (1, 2, 3, 4, 6, 8):
                    if k % (splits * columns):
                        continue
                    yield from _loads(key, m, width, columns, splits)


def _loads(key: tuned.Linear, m: int, width: int, columns: int, splits: int) -> Iterator[Tile]:
    """Ways to load a tile of that shape."""
    rows, n, k, _ = key
    turns = k // splits // columns
    programs = cdiv(rows, m) * cdiv(n, width) * splits
    if (
        programs < min(PROCESSORS // 3, cdiv(n, 32))
        or programs > 10 * PROCESSORS
        or (splits > 1 and programs > 3 * PROCESSORS)
    ):
        return
    lines = 1 << min(4, (k // splits // _LINE).bit_length() - 1)
    each = 2 * columns * (m + width)
    for warps in (4, 8):
        if warps == 8 and m * width < 64 * 64 and width * columns < 64 * 256:
            continue
        if turns == 1:
            # weights are in registers before the wait: up to 64 of them
            if width * columns <= 32 * warps * 128 and each <= SHARED:
                yield Tile(m, width, columns, splits, 1, warps, 0)
            continue
        deep = sorted({min(stages, turns) for stages in (2, 3, 4, 6, 8) if min(stages, turns) * each <= SHARED})
        for stages in deep[-3:]:
            for ahead in (0, lines):
                if ahead * width <= 32 * warps * 32:
                    yield Tile(m, width, columns, splits, stages, warps, ahead)


def _promise(how: Tile, key: tuned.Linear) -> float:
    """How much of the device a tile keeps busy, roughly; more is better."""
    programs = cdiv(key.rows, how.m) * cdiv(key.n, how.n) * how.splits
    turns = key.k // how.splits // how.k
    shared = 2 * how.stages * how.k * (how.m + how.n)
    together = max(1, min(SHARED // max(shared, 1), 4, cdiv(programs, PROCESSORS)))
    full = programs / (cdiv(programs, PROCESSORS * together) * PROCESSORS * together)
    loaded = how.k * how.n * (1 if turns == 1 else how.stages - 1 + how.ahead * _LINE / how.k)
    flight = min(1.0, together * 2 * loaded / IN_FLIGHT)
    # rows are read again by every tile beside them, sums of splits twice
    again = key.rows / how.n + (4 * how.splits * key.rows / key.k if how.splits > 1 else 0)
    return full * flight / (1 + 0.1 * again) - 0.02 * (how.splits - 1)


def ways(key: tuned.Decode) -> list[Decode]:
    """Of decode: what is in use first, then at most ``WAYS`` others."""
    found = {decode_rule(key.pairs): None}
    least = min(PROCESSORS // 2, 8 * key.pairs)
    counts = [s for s in (1, 2, 4, 8, 16) if s == 1 or least <= key.pairs * s <= SPLIT_LIMIT]
    counts = [s for s in counts if s > 1 or key.pairs >= PROCESSORS // 3]
    # keys of a tile, warps, stages, programs of a multiprocessor
    many = [(64, 4, 2, 4), (16, 1, 3, 0), (32, 1, 3, 0), (32, 2, 2, 0), (64, 4, 3, 0), (64, 4, 2, 0), (64, 4, 3, 3)]
    few = [(64, 4, 3, 0), (64, 4, 2, 0), (128, 4, 2, 0), (64, 2, 3, 0), (32, 4, 3, 0), (32, 2, 3, 0)]
    rest = [
        (32, 4, 3, 0),
        (16, 1, 4, 0),
        (32, 2, 3, 0),
        (32, 1, 2, 0),
        (128, 4, 2, 0),
        (64, 4, 4, 0),
        (32, 4, 4, 0),
        (128, 8, 2, 0),
    ]
    # what matters where pairs are many is how many programs a multiprocessor holds
    loads = [*many, *rest] if key.pairs >= 3 * PROCESSORS else [*few[:3], *many, *few[3:], *rest]
    starts = (1, FIRST), (64, FIRST), (1, AFTER), (0, FIRST)
    for tile, warps, stages, programs in loads:
        for splits in counts:
            for early, pdl in starts:
                if early == 1 and warps == 1:
                    continue  # a tile is more than one warp's registers
                for merge in (1, 2) if splits >= 8 and pdl == FIRST else (1,):
                    found[Decode(tile, splits, merge, early, warps, stages, pdl, programs)] = None
    return list(found)[: 1 + WAYS]


def likely(key: tuned.Decode) -> list[Decode]:
    """Of the ways, those with as few splits as may be that start at once."""
    every = ways(key)[1:]
    least = min(how.splits for how in every)
    return [how for how in every if (how.splits, how.merge, how.release) == (least, 1, FIRST) and how.early]


def roomy(how: Tile, key: tuned.Linear) -> Tile | None:
    """The same with as many loads in flight as leave room for no second program beside it: programs that start while
    those of the kernel before still run go where room is, two to one multiprocessor and none to another."""
    each = 2 * how.k * (how.m + how.n)
    stages = cdiv(MEMORY // 2, each)
    turns = key.k // how.splits // how.k
    return how._replace(stages=stages) if how.stages < stages <= turns and stages * each <= SHARED else None
