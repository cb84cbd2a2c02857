"""Keys of one commit, packed into one row or entry of a journal."""

from __future__ import annotations

import struct
from collections.abc import Sequence


def pack_keys(keys: Sequence[bytes]) -> bytes:
    """Return encoded keys as bytes: their number, the length of each, and the keys.

    >>> pack_keys([b"bada", b"i7"]).hex(" ", -4)
    '00000002 00000004 00000002 62616461 6937'
    """
    return b"".join([struct.pack(f">{len(keys) + 1}I", len(keys), *map(len, keys)), *keys])


def unpack_keys(packed: bytes) -> list[bytes]:
    """Return what `pack_keys` was given.

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
