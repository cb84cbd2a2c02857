"""The snapshot: a filter on disk, with the identity and position of the store it matches.

A container of a JSON document, ``store`` (in hexadecimal) and ``position``, and the frame of the
filter. The frame begins at a multiple of 64, so that the file can be mapped. The file is replaced,
never written to in place, so a mapping keeps its content.
"""

from __future__ import annotations

import os
import secrets
from functools import partial
from typing import Any, BinaryIO, NamedTuple

from tamis._checks import MALFORMED
from tamis._files import open_regular, save_atomically
from tamis._frames import CONTAINED, JSON, Frame, FrameWriter, write_all
from tamis._types import FilePath
from tamis.errors import FormatError, TamisError
from tamis.filters import open_part
from tamis.guard.statistics import Log
from tamis.stores.base import Store

KIND = "snapshot"


class Identity(NamedTuple):
    """Which store a filter matches, and as of when; and where its frame begins in the file."""

    store: bytes
    position: str
    offset: int


def save(path: FilePath, filter: Any, store: bytes, position: str) -> None:
    """Write a snapshot atomically."""
    content = filter.to_bytes()  # a copy, so that nobody waits for the disk to use the filter

    def write(descriptor: int) -> None:
        container = FrameWriter(descriptor, KIND, 2)
        container.json({"store": store.hex(), "position": position})
        container.frame(partial(write_all, content=content))
        container.close()

    save_atomically(path, write)


def load(path: FilePath, key: bytes | None, *, mapped: bool = False) -> tuple[Any, bytes, str]:
    """Return the filter, the store's identity and the position; `FormatError` for a damaged file.

    A mapped filter shares its memory with other processes that map the file, except for the pages
    that it writes to.
    """
    with open_regular(path) as file:
        try:
            identity = read_identity(file)
            # By its descriptor: the path may already lead to the next snapshot.
            path_of_file = f"/dev/fd/{file.fileno()}"
            filter = open_part(path_of_file, identity.offset, key, mapped=mapped)
            return filter, identity.store, identity.position
        except (*MALFORMED, TamisError) as error:
            raise FormatError(f"{os.fsdecode(path)}: {error}") from None


def read_identity(file: BinaryIO) -> Identity:
    """Read a snapshot except its filter."""
    frame = Frame.of_file(file)
    frame.expect(KIND, [JSON, CONTAINED])
    offset, fields = frame.contained(1).offset, frame.json(0)
    store, position = bytes.fromhex(fields["store"]), fields["position"]
    if not isinstance(position, str):
        raise TypeError(f"position must be a string, not {position!r}")
    return Identity(store, position, offset)


def store_identity(store: Store) -> bytes:
    """Return the random identifier of a store, by which a snapshot is matched to it."""
    known = store.metadata("identity")
    return known or store.metadata("identity", secrets.token_bytes(16)) or b""


def load_for(
    path: FilePath, store: Store, filter: Any, key: bytes | None, log: Log, *, mapped: bool
) -> tuple[Any, str] | None:
    """Return the filter of a snapshot and its position, if it is valid and of this store."""
    try:
        try:
            loaded, identity, position = load(path, key, mapped=mapped)
        except FormatError:
            if filter is not None or key is None:
                raise
            # The store has the key of another filter.
            loaded, identity, position = load(path, None, mapped=mapped)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("ignoring the snapshot: %s", error)
        return None
    if (filter is not None and type(loaded) is not type(filter)) or identity != store_identity(
        store
    ):
        log.warning("ignoring the snapshot: it belongs to another filter or store")
        return None
    return loaded, position
