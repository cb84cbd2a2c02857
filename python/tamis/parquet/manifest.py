"""The manifest (files, row groups, zones), and the file of an index.

The file is a container of three sections:

    sources      a container of JSON: the sources and options of the index
    collection   the frame of a `tamis.Collection`: filter p·i + c is column c of row group i
    manifest     JSON: the sources again; files, row groups, zones

If any one byte is damaged, it is still known which files to read, at worst all of them. Without the
header of the file, the sources are found by their own header, at a multiple of 64.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tamis import _native
from tamis._files import open_regular
from tamis._frames import (
    CONTAINED,
    JSON,
    Frame,
    FrameWriter,
    ReadAt,
    json_frame,
    read_at,
    write_all,
)
from tamis._ranges import ObjectFile
from tamis.errors import FormatError
from tamis.parquet.column_types import ACCEPTED, Codes, fits_column_type
from tamis.parquet.sources import check_pattern, find_foreign
from tamis.planning.collection.allocation import PREFIX_KINDS
from tamis.planning.collection.curves import Ints

KIND = "skipping"
_MAX_PATH = 1 << 16  # characters
_MAX_HEADER = 1 << 12  # bytes that the header of an index has at most


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
        """Read the result of `to_json`; `ValueError` for anything else."""
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
        _require(
            all(fits_column_type(types.get(name), kind) for name, kind in columns.items()), "schema"
        )
        return cls(columns, schema, files, counts, zones[0], zones[1])


def read_sources(content: Any) -> dict[str, Any]:
    """Read the stored files and options of an index; `ValueError` for anything else."""
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
    _require(kind in ("auto", *PREFIX_KINDS), "kind")
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
    _require(isinstance(value, str) and "\0" not in value and len(value) < _MAX_PATH, "paths")
    os.fsencode(value)
    return str(value)


def _integer(value: Any, low: int, high: int) -> int:
    is_int = isinstance(value, int) and not isinstance(value, bool)
    _require(is_int and low <= value < high, "numbers")
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


class Place(NamedTuple):
    """Where the collection is in the file of an index."""

    offset: int
    length: int


@dataclass(frozen=True)
class Opened:
    """The content of an index file.

    ``manifest`` is None if it is damaged; ``frame``, the place of the collection, is None if the
    header of the collection is damaged.
    """

    sources: dict[str, Any]
    manifest: Manifest | None
    frame: Place | None
    intact: bool = False


def write(
    descriptor: int,
    manifest: Manifest,
    sources: dict[str, Any],
    write_collection: Callable[[int], object],
) -> None:
    """Write the file of an index."""
    container = FrameWriter(descriptor, KIND, 3)
    copy = json_frame(KIND, {"sources": sources})
    container.frame(partial(write_all, content=copy))
    container.frame(write_collection)
    container.json({"sources": sources, **manifest.to_json()})
    container.close()


def collection_place(path: str) -> Place:
    """Return where the collection is in a file that was just written."""
    with open(path, "rb") as file:
        section = Frame.of_file(file).contained(1)
    return Place(section.offset, section.length)


def read(file: str | ObjectFile) -> Opened:
    """Read the sources and the manifest of an index, as far as they are intact."""
    if isinstance(file, ObjectFile):
        return _read(file.name, file.size, file.read_at)
    with open_regular(file) as opened:
        descriptor = opened.fileno()
        size = os.fstat(descriptor).st_size
        return _read(file, size, lambda at, length: read_at(descriptor, at, length))


def _read(path: str, size: int, read: ReadAt) -> Opened:
    def at(start: int, length: int) -> bytes:
        start = min(start, size)
        return read(start, max(min(length, size - start), 0))

    copy, body, place = None, None, None
    try:
        frame = Frame(at, size)
        frame.expect(KIND, [CONTAINED, CONTAINED, JSON])
    except FormatError as error:
        copy, reason = _find_sources(at), f": {error}"
    else:
        reason = " beyond recovery"
        with suppress(FormatError):
            copy = _document(frame.container(0), [JSON])
        with suppress(FormatError):
            body = _document(frame, [CONTAINED, CONTAINED, JSON])
        with suppress(FormatError):
            section = frame.contained(1)
            place = Place(section.offset, section.length)
    readable = body or copy
    if readable is None:
        raise FormatError(f"{path}: not a skipping index, or damaged{reason}")
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
    if copy is not None:
        _check_copy(path, sources, copy)
    return Opened(sources, manifest, place, copy is not None and place is not None)


def _check_copy(path: str, sources: dict[str, Any], copy: dict[str, Any]) -> None:
    """Raise `FormatError` if the sources stand twice, with valid checksums, and differ."""
    try:
        same = read_sources(copy["sources"]) == sources
    except ValueError as error:
        raise FormatError(f"{path}: {error}") from None
    if not same:
        raise FormatError(f"{path}: the two copies of the sources of the index differ")


def check_sources(path: str, opened: Opened) -> None:
    """Raise `FormatError` if the sources of an index do not name a file of its manifest.

    A query searches the files that the sources name now. Without its source, the rows of a file
    would be missing from the results.
    """
    files = () if opened.manifest is None else opened.manifest.files
    sources = opened.sources["sources"]
    # A file system that was given may write paths in another way than its sources.
    known = opened.sources["filesystem"] == "local" or opened.sources["uri"] is not None
    foreign = find_foreign(sources, [file.path for file in files if known or not sources])
    if foreign is not None:
        raise FormatError(f"{path}: the sources of the index do not name its file {foreign!r}")


def _find_sources(at: ReadAt) -> dict[str, Any] | None:
    """Find the sources in a file whose header is damaged."""
    start = at(0, 2 * _MAX_HEADER)
    for offset in range(64, min(len(start), _MAX_HEADER), 64):
        with suppress(FormatError):
            length = _native.FrameHeader.stated_length(start[offset:])
            return _document(Frame(partial(_shifted, at, offset), length), [JSON])
    return None


def _shifted(read: ReadAt, by: int, at: int, length: int) -> bytes:
    return read(by + at, length)


def _document(frame: Frame, sections: list[int]) -> dict[str, Any] | None:
    """Return the JSON of the last section, if it has sources."""
    frame.expect(KIND, sections)
    document = frame.json(len(sections) - 1)
    known = isinstance(document, dict) and isinstance(document.get("sources"), dict)
    return document if known else None


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _bytes(text: Any) -> bytes:
    _require(isinstance(text, str), "arrays")
    return base64.b64decode(text, validate=True)
