"""The snapshot: a filter on disk, with the identity and epoch of the store it matches.

A line of JSON (the store's identity, the epoch, a checksum of both), then the filter's bytes, which
carry their own checksums. Spaces at the end of the line let them begin at a multiple of 64, so that
the file can be mapped. It is replaced, never written to in place, so a mapping keeps its content.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable
from typing import Any

from tamis._files import open_regular, save_whole
from tamis._types import FilePath
from tamis.errors import FormatError, TamisError
from tamis.filters import from_bytes, map_part
from tamis.planning.plan import MALFORMED

_ALIGNMENT = 64
_MAX_HEAD = 4096


def save(path: FilePath, filter: Any, store: bytes, epoch: str) -> None:
    """Write a snapshot atomically."""
    fields = {"tamis": "guard", "store": store.hex(), "epoch": epoch}
    fields["check"] = _check(fields)
    head = json.dumps(fields).encode()
    head += b" " * (-(len(head) + 1) % _ALIGNMENT) + b"\n"
    body = filter.to_bytes()

    def write(descriptor: int) -> None:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(head)
            file.write(body)

    save_whole(path, write)


def load(path: FilePath, key: bytes | None, *, mapped: bool = False) -> tuple[Any, bytes, str]:
    """Return the filter, the store's identity and the epoch; `FormatError` for a damaged file.

    A mapped filter shares its memory with other processes that map the file, except for the pages
    that it writes to.
    """
    with open_regular(path) as file:
        head, newline, body = file.read(_MAX_HEAD).partition(b"\n")
        offset = len(head) + 1
        mapped = mapped and offset % _ALIGNMENT == 0  # earlier versions wrote no spaces
        body = b"" if mapped else body + file.read()

        def open_filter() -> Any:
            if mapped:  # by its descriptor: the path may already lead to the next snapshot
                return map_part(f"/dev/fd/{file.fileno()}", offset, key)
            return from_bytes(body, key=key)

        return _checked(path, head, newline, open_filter)


def _checked(
    path: FilePath, head: bytes, newline: bytes, open_filter: Callable[[], Any]
) -> tuple[Any, bytes, str]:
    try:
        fields = json.loads(head)
        check = fields.pop("check")
        if not newline or fields.pop("tamis") != "guard":
            raise ValueError("not a snapshot of a guard")
        if check != _check({"tamis": "guard", **fields}):
            raise ValueError("the first line is damaged")
        store, epoch = bytes.fromhex(fields["store"]), fields["epoch"]
        if not isinstance(epoch, str):
            raise TypeError(f"epoch must be a string, not {epoch!r}")
        return open_filter(), store, epoch
    except (*MALFORMED, TamisError) as error:
        raise FormatError(f"{os.fsdecode(path)}: {error}") from None


def _check(fields: dict[str, str]) -> str:
    return f"{zlib.crc32(json.dumps(fields, sort_keys=True).encode()):08x}"
