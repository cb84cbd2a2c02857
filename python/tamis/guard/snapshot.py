"""The snapshot: a filter on disk, with the identity and epoch of the store it matches.

A container of a JSON document, ``store`` (in hexadecimal) and ``epoch``, and the frame of the
filter. The frame begins at a multiple of 64, so that the file can be mapped. The file is replaced,
never written to in place, so a mapping keeps its content.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any, BinaryIO, NamedTuple

from tamis._checks import MALFORMED
from tamis._files import open_regular, save_whole
from tamis._frames import CONTAINED, JSON, Frame, FrameWriter, write_all
from tamis._types import FilePath
from tamis.errors import FormatError, TamisError
from tamis.filters import open_part

KIND = "snapshot"


class Identity(NamedTuple):
    """Which store a filter matches, and as of when; and where its frame begins in the file."""

    store: bytes
    epoch: str
    offset: int


def save(path: FilePath, filter: Any, store: bytes, epoch: str) -> None:
    """Write a snapshot atomically."""
    content = filter.to_bytes()  # a copy, so that nobody waits for the disk to use the filter

    def write(descriptor: int) -> None:
        container = FrameWriter(descriptor, KIND, 2)
        container.json({"store": store.hex(), "epoch": epoch})
        container.frame(partial(write_all, content=content))
        container.close()

    save_whole(path, write)


def load(path: FilePath, key: bytes | None, *, mapped: bool = False) -> tuple[Any, bytes, str]:
    """Return the filter, the store's identity and the epoch; `FormatError` for a damaged file.

    A mapped filter shares its memory with other processes that map the file, except for the pages
    that it writes to.
    """
    with open_regular(path) as file:
        try:
            identity = read_identity(file)
            # By its descriptor: the path may already lead to the next snapshot.
            path_of_file = f"/dev/fd/{file.fileno()}"
            filter = open_part(path_of_file, identity.offset, key, mapped=mapped)
            return filter, identity.store, identity.epoch
        except (*MALFORMED, TamisError) as error:
            raise FormatError(f"{os.fsdecode(path)}: {error}") from None


def read_identity(file: BinaryIO) -> Identity:
    """Read a snapshot except its filter."""
    frame = Frame.of_file(file)
    frame.expect(KIND, [JSON, CONTAINED])
    offset, fields = frame.contained(1).offset, frame.json(0)
    store, epoch = bytes.fromhex(fields["store"]), fields["epoch"]
    if not isinstance(epoch, str):
        raise TypeError(f"epoch must be a string, not {epoch!r}")
    return Identity(store, epoch, offset)
