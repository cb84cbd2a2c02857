"""How stores encode keys, values and hashes as bytes or as integers of SQL."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tamis.stores.base import HashRows, PlainKey, Value

SIGN = 1 << 63
"""A word of a hash is stored less this, which keeps the order."""


def encode_key(key: PlainKey) -> bytes:
    """Encode a key as bytes; text and integers stay distinct.

    >>> encode_key(b"1"), encode_key(1)
    (b'b1', b'i1')
    """
    return b"b" + key if isinstance(key, bytes) else b"i%d" % key


def encode_keys(keys: Iterable[PlainKey], prefix: bytes = b"") -> list[bytes]:
    """Encode each key, after a prefix.

    >>> encode_keys([b"1", 1], b"d")
    [b'db1', b'di1']
    """
    text, number = prefix + b"b", prefix + b"i%d"
    return [text + key if isinstance(key, bytes) else number % key for key in keys]


def decode_key(data: bytes) -> PlainKey:
    """Decode a key that `encode_key` wrote."""
    return data[1:] if data[:1] == b"b" else int(data[1:])


def encode_value(value: Value) -> bytes:
    """Encode a value as bytes, with a first byte that says whether it was text."""
    return b"b" + value if isinstance(value, bytes) else b"s" + value.encode()


def encode_values(values: Iterable[Value]) -> list[bytes]:
    """Encode each value."""
    return [b"b" + value if isinstance(value, bytes) else b"s" + value.encode() for value in values]


def decode_value(data: bytes) -> Value:
    """Decode a value that `encode_value` wrote.

    >>> decode_value(encode_value("é")), decode_value(encode_value(b"x"))
    ('é', b'x')
    """
    return data[1:] if data[:1] == b"b" else data[1:].decode()


def load_values(found: Sequence[bytes | None]) -> list[Value | None]:
    """Return the values that a lookup found, `None` where there was no entry."""
    return [None if data is None else decode_value(data) for data in found]


def decode_hashes(data: Sequence[bytes]) -> HashRows:
    """Decode hashes that `_native.encode_hashes` wrote."""
    words = np.frombuffer(b"".join(data), dtype=">u8").reshape(-1, 2)
    return words.astype(np.uint64)


def to_signed(hashes: HashRows) -> Any:
    """Return the two signed words of each hash, as an array."""
    return (hashes ^ np.uint64(SIGN)).view(np.int64)


def from_signed(rows: Sequence[Sequence[int]]) -> HashRows:
    """Return the hashes of rows of two signed words."""
    words = np.array(rows, dtype=np.int64).reshape(-1, 2)
    return words.view(np.uint64) ^ np.uint64(SIGN)


def pack_keys(keys: Sequence[bytes]) -> bytes:
    """Return encoded keys as bytes: their number, the length of each, and the keys.

    >>> pack_keys([b"bada", b"i7"]).hex(" ", -4)
    '00000002 00000004 00000002 62616461 6937'
    """
    return b"".join([struct.pack(f">{len(keys) + 1}I", len(keys), *map(len, keys)), *keys])


def unpack_keys(packed: bytes) -> list[bytes]:
    """Return the keys that `pack_keys` packed.

    >>> unpack_keys(pack_keys([b"bada", b"", b"i7"]))
    [b'bada', b'', b'i7']
    """
    (count,) = struct.unpack_from(">I", packed)
    start, keys = 4 * (count + 1), []
    for length in struct.unpack_from(f">{count}I", packed, 4):
        keys.append(packed[start : start + length])
        start += length
    if start != len(packed):
        raise ValueError("the keys of a commit are cut off, or followed by something else")
    return keys
