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
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tamis._files import open_regular
from tamis._ranges import ObjectFile
from tamis.errors import FormatError
from tamis.parquet.column_types import ACCEPTED, Codes, holds
from tamis.parquet.sources import check_pattern
from tamis.planning.collection.allocation import KINDS
from tamis.planning.collection.curves import Ints

MAGIC = b"\x89tamislk"
VERSION = 1
_DIGEST = 16
_LONGEST = 1 << 16  # characters of a path
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
    tag: str | None = None
    """The ETag of an object, if it was listed."""


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
            "files": [_described(file) for file in self.files],
            "rows": _text(self.rows.astype("<i8").tobytes()),
            "low": _text(self.low.astype("<u8").tobytes()),
            "high": _text(self.high.astype("<u8").tobytes()),
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Manifest:
        """Read what `to_json` returned; `ValueError` if it is anything else."""
        columns = dict(_columns(content.get("columns")))
        files = tuple(_file(each) for each in _list(content.get("files")))
        groups, width = sum(file.groups for file in files), len(columns)
        rows, low, high = (_bytes(content.get(name)) for name in ("rows", "low", "high"))
        sizes = (8 * groups, 8 * groups * width, 8 * groups * width)
        _require((len(rows), len(low), len(high)) == sizes, "arrays")
        _require(len({file.path for file in files}) == len(files), "files")
        counts = np.frombuffer(rows, "<i8").astype(np.int64)
        _require(bool((counts >= 0).all()), "rows")
        zones = [
            np.frombuffer(each, "<u8").astype(np.uint64).reshape(width, groups)
            for each in (low, high)
        ]
        schema = pa.ipc.read_schema(pa.py_buffer(_bytes(content.get("schema"))))
        types = {field.name: field.type for field in schema}
        _require(len(types) == len(schema), "schema")
        _require(all(holds(types.get(name), kind) for name, kind in columns.items()), "schema")
        return cls(columns, schema, files, counts, zones[0], zones[1])


def read_sources(content: Any) -> dict[str, Any]:
    """Return what an index stores of its files and options; `ValueError` if it is anything else."""
    _require(isinstance(content, dict), "sources")
    uri, options = content.get("uri"), content.get("options")
    sources, excluded = (
        [_path(each) for each in _list(content.get(name))] for name in ("sources", "excluded")
    )
    for source in sources:
        check_pattern(source)
    _require(isinstance(options, dict), "options")
    kind, fpr, seed, utility = (options.get(name) for name in ("kind", "fpr", "seed", "utility"))
    _require(set(options) == {"kind", "fpr", "seed", "utility"}, "options")
    _require(kind in ("auto", *KINDS), "kind")
    _require(isinstance(fpr, float) and 2.0**-32 <= fpr < 1, "fpr")
    return {
        "filesystem": _string(content.get("filesystem")),
        "uri": None if uri is None else _string(uri),
        "sources": sources,
        "excluded": excluded,
        "columns": _columns(content.get("columns")),
        "options": {
            "kind": kind,
            "fpr": fpr,
            "seed": _integer(seed, 0, 2**64),
            "utility": None if utility is None else _string(utility),
        },
    }


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"the {what} of the index are not valid")


def _list(value: Any) -> list[Any]:
    _require(isinstance(value, list), "lists")
    return list(value)


def _string(value: Any) -> str:
    _require(isinstance(value, str), "names")
    return str(value).encode().decode()  # half a surrogate pair raises


def _path(value: Any) -> str:
    _require(isinstance(value, str) and "\0" not in value and len(value) < _LONGEST, "paths")
    os.fsencode(value)
    return str(value)


def _integer(value: Any, low: int, high: int) -> int:
    whole = isinstance(value, int) and not isinstance(value, bool)
    _require(whole and low <= value < high, "numbers")
    return int(value)


def _columns(value: Any) -> list[tuple[str, str]]:
    pairs = [_list(each) for each in _list(value)]
    _require(all(len(pair) == 2 for pair in pairs), "columns")
    columns = [(_string(name), _string(kind)) for name, kind in pairs]
    _require(all(kind in ACCEPTED for _, kind in columns), "columns")
    _require(0 < len(columns) == len(dict(columns)), "columns")
    return columns


def _file(value: Any) -> File:
    _require(isinstance(value, list) and len(value) in (5, 6), "files")
    path, size, time, footer, groups, *tag = value
    sizes = _integer(size, 0, 2**63), _integer(time, -(2**63), 2**63)
    tags = [_string(each) for each in tag]
    return File(_path(path), *sizes, _string(footer), _integer(groups, 0, 2**31), *tags)


def _described(file: File) -> list[Any]:
    tag = [] if file.tag is None else [file.tag]
    return [file.path, file.size, file.time, file.footer, file.groups, *tag]


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


def frame_length(path: str) -> int:
    """Return the length of the frame in a file that was just written."""
    with open(path, "rb") as file:
        return int.from_bytes(file.read(_FRAME_LENGTH.stop)[_FRAME_LENGTH], "little")


def read(file: str | ObjectFile) -> Opened:
    """Read the manifest and the tail of an index, as far as they are intact."""
    if isinstance(file, ObjectFile):
        return _read(file.name, file.size, file.read_at)
    with open_regular(file) as opened:
        descriptor = opened.fileno()
        size = os.fstat(descriptor).st_size
        return _read(file, size, lambda at, length: os.pread(descriptor, length, at))


def _read(path: str, size: int, read_at: Callable[[int, int], bytes]) -> Opened:
    def at(start: int, length: int) -> bytes:
        return read_at(start, max(min(length, size - start), 0))

    end = size - _DIGEST - 8 - len(MAGIC)
    last = at(max(end, 0), _DIGEST + 8 + len(MAGIC))
    digest, length, magic = last[:_DIGEST], last[_DIGEST:-8], last[_DIGEST + 8 :]
    tail = None
    start = end - int.from_bytes(length, "little")
    if magic == MAGIC and start >= 0:
        tail = _checked(at(start, end - start), digest)
    head = at(0, _FRAME_HEADER)
    frame = tail.get("frame") if tail else int.from_bytes(head[_FRAME_LENGTH], "little")
    body = None
    if isinstance(frame, int) and _FRAME_HEADER <= frame <= size - _DIGEST - 8:
        first = at(frame, _DIGEST + 8)
        stated = int.from_bytes(first[_DIGEST:], "little")
        if stated <= size:
            body = _checked(at(frame + _DIGEST + 8, stated), first[:_DIGEST])
    readable = body or tail
    if readable is None:
        raise FormatError(f"{path}: not a skipping index, or damaged beyond recovery")
    if readable.get("version") != VERSION:
        raise FormatError(f"{path}: version {readable.get('version')!r} is not supported")
    try:
        sources = read_sources(readable["sources"])
    except ValueError as error:
        raise FormatError(f"{path}: {error}") from None
    if body is None:
        return Opened(sources, None, None)
    try:
        manifest = Manifest.from_json(body)
    except (ValueError, OSError, pa.ArrowException):
        return Opened(sources, None, None)
    if list(manifest.columns.items()) != sources["columns"]:
        return Opened(sources, None, None)
    own = body.get("header") == _digest(head).hex()
    return Opened(sources, manifest, frame if own else None, tail is not None and own)


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":"), sort_keys=True).encode()


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST).digest()


def _checked(content: bytes, digest: bytes) -> dict[str, Any] | None:
    if _digest(content) != digest:
        return None
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError):
        return None
    known = isinstance(parsed, dict) and isinstance(parsed.get("sources"), dict)
    return parsed if known else None


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _bytes(text: Any) -> bytes:
    _require(isinstance(text, str), "arrays")
    return base64.b64decode(text, validate=True)
