"""Prefix hashes: a chain of SHA-256 over full pages, the same in every process and on every machine.

The root names everything but the tokens that the content of a page depends on; a page's hash covers its tokens, the
media in it, and through its parent all that came before. Equal hash, equal content.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from octavo.wire.request import AdapterRef, MediaRef

Buffer: TypeAlias = bytes | npt.NDArray[np.int32]

#: Raised whenever the meaning of a hash changes, so that pages kept elsewhere are never taken for new ones.
VERSION = b"octavo-prefix-1"


def _joined(parts: Sequence[bytes]) -> bytes:
    """Length-prefixed, so that no two lists of parts look the same."""
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def model_root(model: str, epoch: int, dtype: str, page: int) -> bytes:
    """The root of one state of the weights. ``dtype`` is the cache's, with its scales; ``page`` is tokens a page."""
    return sha256(_joined([VERSION, model.encode(), str(epoch).encode(), dtype.encode(), str(page).encode()])).digest()


def request_root(root: bytes, adapter: AdapterRef | None, salt: bytes) -> bytes:
    """The root of one tenant and adapter: requests of another share nothing with it."""
    if adapter is None and not salt:
        return root
    content = b"" if adapter is None else b"adapter" + adapter.content
    return sha256(_joined([root, content, salt])).digest()


def extend(
    hashes: list[bytes], root: bytes, tokens: Buffer, page: int, media: Sequence[MediaRef] = (), most: int | None = None
) -> None:
    """Append the hashes of the full pages of ``tokens`` (int32, from the first token on) not in ``hashes`` yet;
    only the next ``most`` of them, where that is given.

    Media that overlap a page enter it as (content, offset to the page's start): the placeholder tokens alone do not
    say what was seen.
    """
    size = 4 * page
    parent = hashes[-1] if hashes else root
    view = memoryview(tokens if isinstance(tokens, bytes) else np.ascontiguousarray(tokens).data).cast("B")
    stop = len(view) // size
    for index in range(len(hashes), stop if most is None else min(stop, len(hashes) + most)):
        digest = sha256(parent)
        digest.update(view[index * size : (index + 1) * size])
        start = index * page
        for item in media:
            if item.start < start + page and item.stop > start:
                digest.update(_joined([item.content, str(item.start - start).encode()]))
        parent = digest.digest()
        hashes.append(parent)
