"""A reader of GGUF files: metadata and the index of tensors, checked against the file's size.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The constants are the ``gguf`` package's; its own
``GGUFReader`` makes an array a string and takes seconds for a vocabulary, this one takes a tenth of one.
"""

import mmap
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from octavo.errors import CheckpointError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
#: Value type -> (struct code, bytes); 8 is a string, 9 an array.
_SCALARS = {
    0: ("B", 1),
    1: ("b", 1),
    2: ("H", 2),
    3: ("h", 2),
    4: ("I", 4),
    5: ("i", 4),
    6: ("f", 4),
    7: ("?", 1),
    10: ("Q", 8),
    11: ("q", 8),
    12: ("d", 8),
}
_STRING, _ARRAY = 8, 9
_MAX_DIMS = 4


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """``shape`` is in row-major order (the file's reversed). ``offset``: bytes from the start of the file."""

    name: str
    shape: tuple[int, ...]
    kind: str
    offset: int
    nbytes: int


@dataclass(frozen=True)
class GGUFFile:
    """``metadata``: key -> int, float, bool, str or a list of them. ``tensors``: name -> where it is."""

    path: str
    metadata: dict[str, Any]
    tensors: dict[str, GGUFTensor]


def read(path: str) -> GGUFFile:
    """Metadata and tensor index of the file at ``path``; the same file is parsed once a process.

    Raises ``CheckpointError`` where the file is no GGUF, is truncated, or its index points outside it.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    return _read(os.path.abspath(path), status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=4)
def _read(path: str, size: int, _changed: int) -> GGUFFile:
    if size < 24:
        raise CheckpointError(f"{path}: {size} bytes are too few for a GGUF file")
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _Parser(path, data, size).parse()
        except struct.error:
            raise CheckpointError(f"{path}: the GGUF header ends in the middle: the file is truncated") from None


class _Parser:
    def __init__(self, path: str, data: mmap.mmap, size: int):
        self.path, self.data, self.size, self.at = path, data, size, 0

    def parse(self) -> GGUFFile:
        if self.data[:4] != MAGIC:
            raise CheckpointError(f"{self.path}: not a GGUF file: it begins with {self.data[:4]!r}, not {MAGIC!r}")
        self.at = 4
        (version,) = self.unpack("<I", 4)
        if version not in VERSIONS:
            raise CheckpointError(
                f"{self.path}: GGUF version {version} is not supported; supported: 2 and 3, little-endian"
            )
        tensors, pairs = self.unpack("<QQ", 16)
        # The smallest pair takes 13 bytes, the smallest tensor 24: absurd counts end here, not in a long loop.
        if pairs * 13 + tensors * 24 > self.size:
            raise CheckpointError(
                f"{self.path}: the GGUF header is corrupt: {pairs} keys and {tensors} tensors do not fit"
            )
        metadata = {}
        for _ in range(pairs):
            key = self.string("a key")
            (kind,) = self.unpack("<I", 4)
            metadata[key] = self.value(kind, key)
        index = [self.tensor() for _ in range(tensors)]
        align = metadata.get("general.alignment", 32)
        if not isinstance(align, int) or align < 1:
            raise CheckpointError(f"{self.path}: general.alignment is {align!r}, not a whole number over 0")
        start = -(-self.at // align) * align
        found: dict[str, GGUFTensor] = {}
        for name, shape, kind, offset in index:
            if name in found:
                raise CheckpointError(f"{self.path}: tensor {name!r} is listed twice")
            found[name] = self.placed(name, shape, kind, start + offset)
        return GGUFFile(self.path, metadata, found)

    def unpack(self, form: str, count: int) -> tuple:
        values = struct.unpack_from(form, self.data, self.at)
        self.at += count
        return values

    def string(self, what: str) -> str:
        (length,) = self.unpack("<Q", 8)
        if self.at + length > self.size:
            raise CheckpointError(f"{self.path}: {what} says it has {length} bytes, past the end of the file")
        text = self.data[self.at : self.at + length]
        self.at += length
        return text.decode("utf-8", "surrogateescape")

    def value(self, kind: int, key: str, depth: int = 0) -> Any:
        if kind in _SCALARS:
            code, count = _SCALARS[kind]
            return self.unpack("<" + code, count)[0]
        if kind == _STRING:
            return self.string(f"the value of {key!r}")
        if kind != _ARRAY or depth > 3:
            raise CheckpointError(f"{self.path}: the value of {key!r} has the unknown type {kind}")
        inner, length = self.unpack("<IQ", 12)
        if length > self.size:
            raise CheckpointError(f"{self.path}: the value of {key!r} says it has {length} entries, more than the file")
        if inner in _SCALARS:
            code, count = _SCALARS[inner]
            return list(self.unpack(f"<{length}{code}", length * count))
        if inner == _STRING:
            return self.strings(length, key)
        return [self.value(inner, key, depth + 1) for _ in range(length)]

    def strings(self, length: int, key: str) -> list[str]:
        """A vocabulary has 10^5 of them: one loop over bound locals."""
        data, at, size = self.data, self.at, self.size
        unpack: Callable = struct.Struct("<Q").unpack_from
        out = []
        for _ in range(length):
            (count,) = unpack(data, at)
            end = at + 8 + count
            if end > size:
                raise CheckpointError(f"{self.path}: an entry of {key!r} ends past the end of the file")
            out.append(data[at + 8 : end].decode("utf-8", "surrogateescape"))
            at = end
        self.at = at
        return out

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.string("a tensor's name")
        (dims,) = self.unpack("<I", 4)
        if dims > _MAX_DIMS:
            raise CheckpointError(
                f"{self.path}: tensor {name!r} has {dims} dimensions; at most {_MAX_DIMS} are possible"
            )
        shape = self.unpack(f"<{dims}Q", 8 * dims)
        kind, offset = self.unpack("<IQ", 12)
        return name, tuple(reversed(shape)), kind, offset

    def placed(self, name: str, shape: tuple[int, ...], number: int, offset: int) -> GGUFTensor:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        try:
            kind = GGMLQuantizationType(number)
            block, item = GGML_QUANT_SIZES[kind]
        except (ValueError, KeyError):
            raise CheckpointError(f"{self.path}: tensor {name!r} has the unknown type {number}") from None
        items = 1
        for dim in shape:
            items *= dim
        if shape and shape[-1] % block:
            raise CheckpointError(
                f"{self.path}: tensor {name!r} of type {kind.name} has rows of {shape[-1]}, no multiple of {block}"
            )
        nbytes = items // block * item
        if offset + nbytes > self.size:
            raise CheckpointError(
                f"{self.path}: tensor {name!r} needs bytes {offset} to {offset + nbytes}, but the file has "
                f"{self.size}: it is truncated or corrupt"
            )
        return GGUFTensor(name, shape, kind.name, offset, nbytes)


def floats(file: GGUFFile, name: str) -> list[float]:
    """The values of a small F32 tensor."""
    tensor = file.tensors[name]
    if tensor.kind != "F32":
        raise CheckpointError(f"{file.path}: tensor {name!r} has type {tensor.kind}; it must be F32")
    values = np.fromfile(file.path, np.float32, tensor.nbytes // 4, offset=tensor.offset)
    return [float(value) for value in values]
