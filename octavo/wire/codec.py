"""msgpack for the wire: structs as arrays, numpy arrays as (dtype, shape, bytes)."""

from typing import Any

import msgspec
import numpy as np


def _encode_array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, np.ascontiguousarray(value).data
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} does not travel")


def _decode_array(kind: type, value: Any) -> Any:
    if kind is np.ndarray or getattr(kind, "__origin__", None) is np.ndarray:
        dtype, shape, data = value
        return np.frombuffer(data, dtype).reshape(shape)
    raise NotImplementedError(f"{kind} does not travel")


class Codec:
    """Encodes anything of ``wire``; decodes to one type, given once (decoders are built once: they are dear).

    Decoded arrays are read-only views of the message.
    """

    def __init__(self, kind: Any):
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_encode_array)
        self._decoder = msgspec.msgpack.Decoder(kind, dec_hook=_decode_array)

    def encode(self, value: Any) -> bytes:
        return self._encoder.encode(value)

    def decode(self, data: bytes | memoryview) -> Any:
        """Raises ``msgspec.MsgspecError`` for a malformed message."""
        return self._decoder.decode(data)
