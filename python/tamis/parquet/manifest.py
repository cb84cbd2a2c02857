"""The manifest (files, row groups, zones), and the file of an index.

    collection   the frame of a `tamis.Collection`: filter p·i + c is column c of row group i
    manifest     16 bytes of digest, 8 of length, JSON: files, row groups, zones
    tail         JSON: sources, length of the frame; 16 bytes of digest, 8 of length, 8 of magic

The tail repeats the sources of the manifest, and the frame stores its own length. So if any one
byte is damaged, it is still known which files to read, at worst all of them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tamis.errors import FormatError
from tamis.parquet.columns import ACCEPTED, Codes
from tamis.planning.collection.curves import Ints

MAGIC = b"\x89tamislk"
VERSION = 1
_DIGEST = 16
_FRAME_LENGTH = slice(40, 48)  # position in the header of a frame
_FRAME_HEADER = 264  # bytes of a collection's header, whose checksum covers the whole frame


@dataclass(frozen=True)
class File:
    """A file at the time it was indexed."""

    path: str
    size: int
    time: int
    footer: str
    groups: int


@dataclass(frozen=True)
class Manifest:
    """Files, and arrays over their row groups in file order: rows, and zones per column."""

    columns: dict[str, str]
    schema: pa.Schema
    files: tuple[File, ...]
    rows: Ints
    low: Codes
    high: Codes

    @property
    def starts(self) -> Ints:
        """The first row group of each file, and the end."""
        ends = np.cumsum([file.groups for file in self.files], dtype=np.int64)
        return np.concatenate([np.zeros(1, np.int64), ends])

    @property
    def size_in_bytes(self) -> int:
        """Memory, approximately."""
        files = sum(len(file.path) + _FILE for file in self.files)
        return files + self.rows.nbytes + self.low.nbytes + self.high.nbytes

    def without(self, gone: set[int]) -> tuple[Manifest, npt.NDArray[np.bool_]]:
        """Remove files; return the rest, and which row groups remain."""
        stay = np.repeat(
            [number not in gone for number in range(len(self.files))],
            [file.groups for file in self.files],
        ).astype(np.bool_)
        files = tuple(file for number, file in enumerate(self.files) if number not in gone)
        rest = replace(
            self, files=files, rows=self.rows[stay], low=self.low[:, stay], high=self.high[:, stay]
        )
        return rest, stay

    def concatenate(self, other: Manifest) -> Manifest:
        """Append the files of another manifest."""
        return replace(
            other,
            files=self.files + other.files,
            rows=np.concatenate([self.rows, other.rows]),
            low=np.concatenate([self.low, other.low], axis=1),
            high=np.concatenate([self.high, other.high], axis=1),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the manifest as JSON values."""
        return {
            "columns": list(self.columns.items()),
            "schema": _text(self.schema.serialize().to_pybytes()),
            "files": [[f.path, f.size, f.time, f.footer, f.groups] for f in self.files],
            "rows": _text(self.rows.astype("<i8").tobytes()),
            "low": _text(self.low.astype("<u8").tobytes()),
            "high": _text(self.high.astype("<u8").tobytes()),
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Manifest:
        """Read what `to_json` returned."""
        columns = {str(name): str(family) for name, family in content["columns"]}
        files = tuple(
            File(str(path), int(size), int(time), str(footer), int(groups))
            for path, size, time, footer, groups in content["files"]
        )
        groups, width = sum(file.groups for file in files), len(columns)
        rows = np.frombuffer(_bytes(content["rows"]), "<i8").astype(np.int64)
        low, high = (
            np.frombuffer(_bytes(content[name]), "<u8").astype(np.uint64).reshape(width, groups)
            for name in ("low", "high")
        )
        known = all(family in ACCEPTED for family in columns.values())
        if not known or rows.shape != (groups,) or any(file.groups < 0 for file in files):
            raise ValueError("the parts of the manifest do not match")
        schema = pa.ipc.read_schema(pa.py_buffer(_bytes(content["schema"])))
        return cls(columns, schema, files, rows, low, high)


_FILE = 300  # bytes of a `File` apart from its path


@dataclass(frozen=True)
class Opened:
    """The content of an index file.

    ``manifest`` is None if it is damaged; ``frame``, the length of the collection, is None if the
    collection does not belong to the manifest.
    """

    sources: dict[str, Any]
    manifest: Manifest | None
    frame: int | None
    intact: bool = False


def write(descriptor: int, manifest: Manifest, sources: dict[str, Any]) -> None:
    """Append a manifest and a tail to the frame in an open file."""
    frame = os.fstat(descriptor).st_size
    header = _digest(os.pread(descriptor, _FRAME_HEADER, 0)).hex()
    body = _json({"version": VERSION, "sources": sources, "header": header, **manifest.to_json()})
    tail = _json({"version": VERSION, "sources": sources, "frame": frame})
    content = _digest(body) + len(body).to_bytes(8, "little") + body
    content += tail + _digest(tail) + len(tail).to_bytes(8, "little") + MAGIC
    with open(descriptor, "wb", closefd=False) as file:
        file.seek(0, os.SEEK_END)
        file.write(content)


def read(path: str) -> Opened:
    """Read the manifest and the tail of an index, as far as they are intact."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        end = size - _DIGEST - 8 - len(MAGIC)
        file.seek(max(end, 0))
        digest, length, magic = file.read(_DIGEST), file.read(8), file.read()
        tail = None
        start = end - int.from_bytes(length, "little")
        if magic == MAGIC and start >= 0:
            file.seek(start)
            tail = _checked(file.read(end - start), digest)
        file.seek(0)
        head = file.read(_FRAME_HEADER)
        frame = int(tail["frame"]) if tail else int.from_bytes(head[_FRAME_LENGTH], "little")
        body = None
        if _FRAME_HEADER <= frame <= size - _DIGEST - 8:
            file.seek(frame)
            digest, length = file.read(_DIGEST), file.read(8)
            if int.from_bytes(length, "little") <= size:
                body = _checked(file.read(int.from_bytes(length, "little")), digest)
    readable = body or tail
    if readable is None:
        raise FormatError(f"{path}: not a skipping index, or damaged beyond recovery")
    if readable.get("version") != VERSION:
        raise FormatError(f"{path}: version {readable.get('version')} is not supported")
    if body is None:
        return Opened(readable["sources"], None, None)
    try:
        manifest = Manifest.from_json(body)
    except (KeyError, TypeError, ValueError, pa.ArrowException):
        return Opened(readable["sources"], None, None)
    own = body.get("header") == _digest(head).hex()
    return Opened(readable["sources"], manifest, frame if own else None, tail is not None and own)


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":"), sort_keys=True).encode()


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST).digest()


def _checked(content: bytes, digest: bytes) -> dict[str, Any] | None:
    if _digest(content) != digest:
        return None
    parsed = json.loads(content)
    known = isinstance(parsed, dict) and isinstance(parsed.get("sources"), dict)
    return parsed if known else None


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
