"""What an index knows of its files beside their filters, and the file that holds both.

    collection   the frame of a `tamis.Collection`: filter p·i + c is column c of row group i
    manifest     16 bytes of digest, 8 of length, JSON: files, row groups, zones
    tail         JSON: sources, where the manifest is; 16 bytes of digest, 8 of length, 8 of magic

The tail repeats what the manifest says of the sources, and the frame says itself where it ends. So
wherever one byte is damaged, it is still known which files to read, if only all of them.
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
_FRAME_LENGTH = slice(40, 48)  # in the header of a frame
_FRAME_HEADER = 264  # bytes of a collection's header, the checksum of which covers all of it


@dataclass(frozen=True)
class File:
    """A file as it was when it was read."""

    path: str
    size: int
    time: int
    footer: str
    groups: int


@dataclass(frozen=True)
class Manifest:
    """Files, and arrays over their row groups, file by file: rows, and zones per column."""

    columns: dict[str, str]
    schema: pa.Schema
    files: tuple[File, ...]
    rows: Ints
    low: Codes
    high: Codes

    @property
    def starts(self) -> Ints:
        """Where the row groups of each file begin, and the end."""
        ends = np.cumsum([file.groups for file in self.files], dtype=np.int64)
        return np.concatenate([np.zeros(1, np.int64), ends])

    @property
    def size_in_bytes(self) -> int:
        """About what it takes in memory."""
        files = sum(len(file.path) + _FILE for file in self.files)
        return files + self.rows.nbytes + self.low.nbytes + self.high.nbytes

    def without(self, gone: set[int]) -> tuple[Manifest, npt.NDArray[np.bool_]]:
        """Leave out files; the rest, and which row groups stay."""
        stay = np.repeat(
            [number not in gone for number in range(len(self.files))],
            [file.groups for file in self.files],
        ).astype(np.bool_)
        files = tuple(file for number, file in enumerate(self.files) if number not in gone)
        rest = replace(
            self, files=files, rows=self.rows[stay], low=self.low[:, stay], high=self.high[:, stay]
        )
        return rest, stay

    def and_(self, other: Manifest) -> Manifest:
        """Put the files of another behind these."""
        return replace(
            other,
            files=self.files + other.files,
            rows=np.concatenate([self.rows, other.rows]),
            low=np.concatenate([self.low, other.low], axis=1),
            high=np.concatenate([self.high, other.high], axis=1),
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as what JSON can say."""
        return {
            "columns": list(self.columns.items()),
            "schema": _text(self.schema.serialize().to_pybytes()),
            "files": [[f.path, f.size, f.time, f.footer, f.groups] for f in self.files],
            "rows": _text(self.rows.astype("<i8").tobytes()),
            "low": _text(self.low.astype("<u8").tobytes()),
            "high": _text(self.high.astype("<u8").tobytes()),
        }

    @classmethod
    def from_json(cls, said: dict[str, Any]) -> Manifest:
        """Read what `to_json` returned."""
        columns = {str(name): str(family) for name, family in said["columns"]}
        files = tuple(
            File(str(path), int(size), int(time), str(footer), int(groups))
            for path, size, time, footer, groups in said["files"]
        )
        groups, width = sum(file.groups for file in files), len(columns)
        rows = np.frombuffer(_bytes(said["rows"]), "<i8").astype(np.int64)
        low, high = (
            np.frombuffer(_bytes(said[name]), "<u8").astype(np.uint64).reshape(width, groups)
            for name in ("low", "high")
        )
        known = all(family in ACCEPTED for family in columns.values())
        if not known or rows.shape != (groups,) or any(file.groups < 0 for file in files):
            raise ValueError("its parts do not fit together")
        schema = pa.ipc.read_schema(pa.py_buffer(_bytes(said["schema"])))
        return cls(columns, schema, files, rows, low, high)


_FILE = 300  # bytes of a `File` beside its path


@dataclass(frozen=True)
class Opened:
    """What a file of an index says: no manifest if that is damaged, no frame if it is another's."""

    sources: dict[str, Any]
    manifest: Manifest | None
    frame: int | None
    whole: bool = False


def write(descriptor: int, manifest: Manifest, sources: dict[str, Any]) -> None:
    """Write a manifest and a tail behind the frame that is in an open file."""
    frame = os.fstat(descriptor).st_size
    header = _digest(os.pread(descriptor, _FRAME_HEADER, 0)).hex()
    said = _json({"version": VERSION, "sources": sources, "header": header, **manifest.to_json()})
    tail = _json({"version": VERSION, "sources": sources, "frame": frame})
    content = _digest(said) + len(said).to_bytes(8, "little") + said
    content += tail + _digest(tail) + len(tail).to_bytes(8, "little") + MAGIC
    with open(descriptor, "wb", closefd=False) as file:
        file.seek(0, os.SEEK_END)
        file.write(content)


def read(path: str) -> Opened:
    """Read manifest and tail of an index, or what is left of them."""
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
        told = int(tail["frame"]) if tail else int.from_bytes(head[_FRAME_LENGTH], "little")
        said = None
        if _FRAME_HEADER <= told <= size - _DIGEST - 8:
            file.seek(told)
            digest, length = file.read(_DIGEST), file.read(8)
            if int.from_bytes(length, "little") <= size:
                said = _checked(file.read(int.from_bytes(length, "little")), digest)
    both = said or tail
    if both is None:
        raise FormatError(f"{path}: it is no skipping index, or damaged in all its parts")
    if both.get("version") != VERSION:
        raise FormatError(f"{path}: version {both.get('version')} is not known")
    if said is None:
        return Opened(both["sources"], None, None)
    try:
        manifest = Manifest.from_json(said)
    except (KeyError, TypeError, ValueError, pa.ArrowException):
        return Opened(both["sources"], None, None)
    own = said.get("header") == _digest(head).hex()
    return Opened(both["sources"], manifest, told if own else None, tail is not None and own)


def _json(said: dict[str, Any]) -> bytes:
    return json.dumps(said, separators=(",", ":"), sort_keys=True).encode()


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST).digest()


def _checked(content: bytes, digest: bytes) -> dict[str, Any] | None:
    if _digest(content) != digest:
        return None
    said = json.loads(content)
    return said if isinstance(said, dict) and isinstance(said.get("sources"), dict) else None


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
