"""Safetensors directories, sharded or not: https://huggingface.co/docs/safetensors.

Only headers are read at first. A tensor goes from the file straight into its place, by ``readinto`` where the dtype is
the model's and in pieces of a bounded buffer where it is not, so that memory holds the model once.
"""

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from octavo.device.weights.source import CHUNK, Stored, bytes_of
from octavo.errors import CheckpointError

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_INDEX = "model.safetensors.index.json"
_MAX_HEADER = 100_000_000


class SafetensorsSource:
    """All tensors of a directory."""

    def __init__(self, directory: str):
        self.tensors: dict[str, Stored] = {}
        self._at: dict[str, tuple[int, torch.dtype]] = {}
        for path in _files(Path(directory)):
            for name, (shape, offset, kind) in _header(path).items():
                if name in self.tensors:
                    other = os.path.basename(self.tensors[name].file)
                    raise CheckpointError(f"{path}: tensor {name!r} is in {other} too")
                self.tensors[name] = Stored(shape, str(path), name)
                self._at[name] = offset, kind
        self._check_index(Path(directory))

    def read(self, name: str, out: Tensor) -> None:
        stored, (offset, kind) = self.tensors[name], self._at[name]
        try:
            with open(stored.file, "rb", buffering=0) as file:
                file.seek(offset)
                if out.dtype == kind and out.device.type == "cpu":
                    _fill(file, bytes_of(out))
                    return
                flat = out.view(-1)
                step = CHUNK if out.device.type == "cpu" else 32 * CHUNK
                piece = torch.empty(min(step, flat.numel()), dtype=kind)
                for start in range(0, flat.numel(), step):
                    part = piece[: flat.numel() - start]
                    _fill(file, bytes_of(part))
                    flat[start : start + part.numel()].copy_(part)
        except OSError as error:
            raise CheckpointError(f"{stored.file}: tensor {name!r} cannot be read: {error}") from None

    def close(self) -> None:
        pass

    def _check_index(self, directory: Path) -> None:
        for name, file in _index(directory).items():
            stored = self.tensors.get(name)
            if stored is None or os.path.basename(stored.file) != file:
                raise CheckpointError(
                    f"{directory / file}: tensor {name!r} is missing, though {_INDEX} says it is there"
                )


def _fill(file: Any, target: Tensor) -> None:
    """Read until ``target`` is full: one call may give less, at most 2 GiB on Linux."""
    view = memoryview(target.numpy().data)
    while view:
        count = file.readinto(view)
        if not count:
            raise OSError("the file ended; it has changed since it was opened")
        view = view[count:]


def _index(directory: Path) -> dict[str, str]:
    path = directory / _INDEX
    if not path.exists():
        return {}
    try:
        table = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        return {str(name): str(file) for name, file in table.items()}
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: cannot be read as an index of shards: {error!r}") from None


def _files(directory: Path) -> list[Path]:
    named = sorted(set(_index(directory).values()))
    if named:
        for file in named:
            if os.path.basename(file) != file:
                raise CheckpointError(f"{directory / _INDEX}: names {file!r}, which is outside the directory")
            if not (directory / file).is_file():
                raise CheckpointError(f"{directory / file}: the shard is missing; {_INDEX} names {len(named)} of them")
        return [directory / file for file in named]
    found = sorted(directory.glob("*.safetensors"))
    # Mistral's own format lies beside the Hugging Face one in some repositories.
    files = [path for path in found if not path.name.startswith("consolidated")]
    if not files:
        other = sorted(path.name for path in directory.iterdir() if path.suffix in (".bin", ".pt", ".pth", ".gguf"))
        hint = f"; {other[0]} is there, but of a directory only safetensors are read" if other else ""
        raise CheckpointError(f"{directory}: no *.safetensors file is there{hint}")
    return files


def _header(path: Path) -> dict[str, tuple[tuple[int, ...], int, torch.dtype]]:
    """name -> (shape, offset from the start of the file, dtype), every entry checked against the file's size."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, _MAX_HEADER):
                raise CheckpointError(
                    f"{path}: the safetensors header says it has {length} bytes, the file has {size}: "
                    "truncated or corrupt"
                )
            table = json.loads(file.read(length))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    except CheckpointError:
        raise
    except (ValueError, RecursionError):
        raise CheckpointError(f"{path}: the safetensors header is not JSON: the file is corrupt") from None
    if not isinstance(table, dict):
        raise CheckpointError(f"{path}: the safetensors header is no JSON object: the file is corrupt")
    return {
        name: _entry(path, name, entry, 8 + length, size) for name, entry in table.items() if name != "__metadata__"
    }


def _entry(path: Path, name: str, entry: Any, base: int, size: int) -> tuple[tuple[int, ...], int, torch.dtype]:
    try:
        kind, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        whole = all(type(value) is int and value >= 0 for value in (*shape, start, end))
    except (KeyError, TypeError, ValueError):
        whole = False
    if not whole:
        raise CheckpointError(f"{path}: the header entry of tensor {name!r} is malformed: the file is corrupt")
    if not isinstance(kind, str) or kind not in DTYPES:
        raise CheckpointError(f"{path}: tensor {name!r} has dtype {kind}; supported: {', '.join(DTYPES)}")
    count = DTYPES[kind].itemsize
    for dim in shape:
        count *= dim
    if end - start != count:
        raise CheckpointError(
            f"{path}: tensor {name!r} of shape {list(shape)} needs {count} bytes, its entry has {end - start}: corrupt"
        )
    if base + end > size:
        raise CheckpointError(
            f"{path}: tensor {name!r} ends at byte {base + end}, but the file has {size}: it is truncated"
        )
    return shape, base + start, DTYPES[kind]
