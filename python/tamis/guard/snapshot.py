"""The snapshot: a filter on disk, with the identity and epoch of the store it matches.

A line of JSON (the store's identity, the epoch, a checksum of both), then the filter's bytes, which
carry their own checksums.
"""

from __future__ import annotations

import json
import os
import zlib
from typing import Any

from tamis._files import open_regular, save_whole
from tamis._types import FilePath
from tamis.errors import FormatError, TamisError
from tamis.filters import from_bytes
from tamis.planning.plan import MALFORMED


def save(path: FilePath, filter: Any, store: bytes, epoch: str) -> None:
    """Write a snapshot atomically."""
    fields = {"tamis": "guard", "store": store.hex(), "epoch": epoch}
    fields["check"] = _check(fields)
    head = json.dumps(fields).encode() + b"\n"
    body = filter.to_bytes()

    def write(descriptor: int) -> None:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(head)
            file.write(body)

    save_whole(path, write)


def load(path: FilePath, key: bytes | None) -> tuple[Any, bytes, str]:
    """Return the filter, the store's identity and the epoch; `FormatError` for a damaged file."""
    with open_regular(path) as file:
        head, newline, body = file.read().partition(b"\n")
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
        return from_bytes(body, key=key), store, epoch
    except (*MALFORMED, TamisError) as error:
        raise FormatError(f"{os.fsdecode(path)}: {error}") from None


def _check(fields: dict[str, str]) -> str:
    return f"{zlib.crc32(json.dumps(fields, sort_keys=True).encode()):08x}"
