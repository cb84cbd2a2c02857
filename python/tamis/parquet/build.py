"""Build, open, update, merge and write the state of an index."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow.fs import LocalFileSystem

from tamis._objects import StorageOptions, as_filesystem
from tamis._ranges import ObjectFile
from tamis.collection import Collection
from tamis.collection.build import copy_filters
from tamis.errors import FormatError, IncompatibleError
from tamis.parquet import column_types
from tamis.parquet import manifest as persisted
from tamis.parquet.column_types import ABSENT
from tamis.parquet.file_set import FileSet, FileWatch, Source, describe
from tamis.parquet.location import Location
from tamis.parquet.manifest import Manifest
from tamis.parquet.row_groups import Options, Reader
from tamis.parquet.schema import file_schema, join_schema, read_footer, unify_schemas
from tamis.parquet.sources import Stamp
from tamis.parquet.state import Flags, State
from tamis.planning.collection.allocation import utilities


def column_names(columns: str | Sequence[str]) -> list[str]:
    """Return the columns to index as a list; raise if they are not distinct names."""
    if isinstance(columns, str):
        return [columns]
    names = list(columns) if isinstance(columns, Iterable) else []
    named = all(isinstance(name, str) for name in names)
    if not names or not named or len(set(names)) < len(names):
        raise ValueError(f"columns must be one or more distinct names, not {columns!r}")
    return names


def build_state(
    file_set: FileSet,
    stamps: Mapping[str, Stamp],
    columns: Sequence[str] | Mapping[str, str],
    options: Options,
    utility: npt.ArrayLike | None,
    *,
    hybrid: bool,
    threads: int | None,
    progress: bool | None,
) -> State:
    """Index files of a set; without ``utility``, a row group has the mean of its rows, or 1.

    With the types of ``columns``, files may lack all of them.
    """
    reader = Reader(file_set, stamps, columns, None, options, threads)
    collection = Collection.build((), parts=len(columns), seed=options.seed, hybrid=hybrid)
    collection.extend(reader.sets(0, progress), allocate=False)
    manifest = reader.manifest
    absent = [name for name in manifest.columns if name not in manifest.schema.names]
    for name in absent:
        kind = column_types.DEFAULTS[manifest.columns[name]]
        field = pa.field(name, kind, metadata={column_types.ABSENT: ""})
        manifest = replace(manifest, schema=manifest.schema.append(field))
    weights = utilities(reader.utility if utility is None else utility, len(manifest.rows))
    return State(file_set, options, manifest, collection, weights)


def open_state(
    location: Location,
    source: Source | None,
    filesystem: Any,
    *,
    hybrid: bool,
    immutable: bool,
) -> tuple[State, bool]:
    """Open the file of an index; return its state, and whether the file is intact."""
    path = location.open()
    try:
        opened = persisted.read(path)
    except FormatError:
        if source is None:
            raise
        opened = None
    file_set = _opened_file_set(opened, location, source, filesystem, immutable)
    options = Options("auto", 1e-4, 0, None)
    if opened:
        options = replace(options, **opened.sources["options"])
    manifest, collection = opened.manifest if opened else None, None
    if opened and manifest and opened.frame is not None:
        collection = open_collection(path, opened.frame, manifest, options.seed, hybrid)
    if manifest is None:
        manifest = empty_manifest(file_set, opened.sources["columns"] if opened else None)
    weights = np.ones(len(manifest.rows))
    if collection is not None:
        weights = collection.utility[:: len(manifest.columns)].copy()
    state = State(file_set, options, manifest, collection, weights)
    return state, opened is not None and opened.intact


def part_state(path: str, file_set: FileSet) -> State:
    """Open the file of an index that was built as a part of another one."""
    opened = persisted.read(path)
    if opened.manifest is None or opened.frame is None:
        raise FormatError(f"{path}: the part of an index is damaged")
    options = Options(**opened.sources["options"])
    manifest = opened.manifest
    collection = open_collection(path, opened.frame, manifest, options.seed, hybrid=False)
    if collection is None:
        raise FormatError(f"{path}: the part of an index is damaged")
    weights = collection.utility[:: len(manifest.columns)].copy()
    return State(file_set, options, manifest, collection, weights)


def _opened_file_set(
    opened: persisted.Opened | None,
    location: Location,
    source: Source | None,
    filesystem: Any,
    immutable: bool,
) -> FileSet:
    if source is None:
        assert opened is not None
        if _is_remote(filesystem):
            raise ValueError(
                "source must be given with filesystem; the index was built over "
                + describe(opened.sources)
            )
        if immutable:
            raise ValueError("source must be the list of current files if immutable=True, not None")
        file_set = FileSet.from_manifest(opened.sources, location)
        persisted.check_sources(location.path, opened)
        return file_set
    file_set = FileSet.of(source, filesystem, immutable=immutable)
    file_set.refuse_tables()
    if opened is None:
        return file_set
    kind, uri = opened.sources["filesystem"], opened.sources["uri"]
    given = filesystem is not None and not isinstance(filesystem, StorageOptions)
    if not given and kind != "local" and uri is None:
        raise ValueError(f"filesystem must be the {kind} file system of the index, not None")
    return replace(file_set, excluded=frozenset(opened.sources["excluded"]))


def _is_remote(filesystem: Any) -> bool:
    """Whether a file system was given that is not the local one."""
    if filesystem is None or isinstance(filesystem, StorageOptions):
        return False
    return not isinstance(as_filesystem(filesystem), LocalFileSystem)


class Update(NamedTuple):
    """An updated state."""

    state: State
    remaining: Flags
    """Which row groups of the state before are part of it."""
    files_read: int
    unreadable: dict[str, str]


def update_state(
    state: State, file_set: FileSet, *, force: bool, threads: int | None, progress: bool | None
) -> Update | None:
    """Read files that are new, changed or damaged, and drop files that are gone.

    Returns None if there is nothing to do, unless ``force``.
    """
    files = FileWatch(0.0, threads).check(file_set, state.manifest.files)
    gone = set(np.flatnonzero(~files.fresh).tolist()) | state.damaged_files()
    rest, remaining = state.manifest.without(gone)
    kept = {file.path for file in rest.files}
    unread = file_set.unlisted(kept)
    if not gone and not unread and file_set == state.file_set and not force:
        return None
    width = len(rest.columns)
    if state.collection is None:
        collection = Collection.build((), parts=width, seed=state.options.seed)
    else:
        # A copy, so that queries under way keep the old one.
        collection = copy.copy(state.collection)
        collection.drop(np.flatnonzero(np.repeat(~remaining, width)))
    reader = Reader(file_set, unread, (), rest, state.options, threads, skip=True)
    first = 1 + int(collection.names[-1]) if len(collection) else 0
    collection.extend(reader.sets(first, progress), allocate=False)
    before, added = state.utility[remaining], reader.utility
    if state.options.utility is None and len(before):
        added = np.full(len(added), before.mean())
    weights = np.concatenate([before, added])
    manifest = rest.concatenate(reader.manifest)
    updated = State(file_set, state.options, manifest, collection, weights)
    return Update(updated, remaining, len(reader.manifest.files), reader.unreadable)


def writer_of(state: State) -> Callable[[int], None]:
    """Return a function that writes the file of an index to an open file."""
    collection = state.collection
    if collection is None or len(collection.damaged):
        raise ValueError("filters of the index are damaged: call refresh() to rebuild them")

    def write(descriptor: int) -> None:
        persisted.write(descriptor, state.manifest, state.sources, collection.write)

    return write


def write_state(state: State, location: Location) -> Collection | None:
    """Write the file of an index, atomically; return its collection without bits in memory."""
    assert state.collection is not None
    hybrid = state.collection.hybrid
    with location.written(writer_of(state)) as path:
        frame = persisted.collection_place(path)
        return open_collection(path, frame, state.manifest, state.options.seed, hybrid)


def open_collection(
    path: str | ObjectFile, frame: persisted.Place, manifest: Manifest, seed: int, hybrid: bool
) -> Collection | None:
    """Open the filters of an index; None if they are damaged or do not belong to the manifest."""
    parts = len(manifest.columns)
    try:
        collection = Collection.open(
            path,
            parts=parts,
            offset=frame.offset,
            length=frame.length,
            hybrid=hybrid,
            salvage=True,
            allocate=False,
        )
        utilities(collection.utility, parts * len(manifest.rows))
        last = int(collection.names[-1]) if len(collection) else 0
    except ValueError:  # also a FormatError
        return None
    return collection if collection.seed == seed and 0 <= last < 2**63 else None


def empty_manifest(file_set: FileSet, columns: Sequence[tuple[str, str]] | None) -> Manifest:
    """Return a manifest without files, so that all are read in full.

    Its columns are ``columns``, or all that can be indexed.
    """
    named = dict(columns or ())
    schema = pa.schema([])
    for path in file_set.files():
        try:
            own = file_schema(read_footer(file_set, path), named)
            schema = join_schema(schema, path, own, named)
        except (FormatError, TypeError, OSError):
            continue  # queries report the file
    if columns is None:
        found = {field.name: column_types.column_type(field.type) for field in schema}
        named = {name: kind for name, kind in found.items() if kind is not None}
    for name, kind in named.items():
        if name not in schema.names:
            schema = schema.append(pa.field(name, column_types.DEFAULTS[kind]))
    none = np.zeros((len(named), 0), np.uint64)
    return Manifest(named, schema, (), np.zeros(0, np.int64), none, none)


def merge_states(parts: Sequence[State], file_set: FileSet, *, hybrid: bool) -> State:
    """Merge the states of indexes of different files, in the order of their paths."""
    first = parts[0]
    for i, part in enumerate(parts):
        if part.manifest.columns != first.manifest.columns or part.options != first.options:
            raise IncompatibleError(
                f"parts must have the same columns, kind, fpr, seed and utility; parts[{i}] has "
                f"{_settings(part)}, parts[0] has {_settings(first)}"
            )
        if part.collection is None or len(part.collection.damaged):
            raise ValueError(f"filters of parts[{i}] are damaged: call its refresh() first")
    width = len(first.manifest.columns)
    order = _group_order(parts)
    names = np.empty(len(order) * width, np.int64)
    by_set = (order[:, None] * width + np.arange(width)).reshape(-1)
    names[by_set] = np.arange(len(by_set))
    full = [part.collection._memory.filters for part in parts if part.collection is not None]
    filters = copy_filters(full, [str(name) for name in names.tolist()], None, None)
    filters.reorder(by_set.tolist())
    utility = np.concatenate([part.utility for part in parts])[order]
    collection = Collection.unloaded(filters, np.repeat(utility, width), hybrid=hybrid, parts=width)
    return State(file_set, first.options, _merge_manifests(parts, order), collection, utility)


def _settings(state: State) -> str:
    options = state.options
    columns = ", ".join(state.manifest.columns)
    return f"{columns}; {options.kind!r}, {options.fpr}, {options.seed}, {options.utility!r}"


def _group_order(parts: Sequence[State]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the numbers of row groups, counted over all parts, in the order of their files."""
    found: dict[str, range] = {}
    start = 0
    for i, part in enumerate(parts):
        for file in part.manifest.files:
            if file.path in found:
                raise ValueError(f"parts must have different files; parts[{i}] repeats {file.path}")
            found[file.path] = range(start, start + file.groups)
            start += file.groups
    return np.array([group for path in sorted(found) for group in found[path]], np.int64)


def _merge_manifests(
    parts: Sequence[State], order: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> Manifest:
    manifests = [part.manifest for part in parts]
    schema: pa.Schema | None = None
    columns = manifests[0].columns
    there = (each for each in manifests if each.files)
    for each in sorted(there, key=lambda manifest: min(file.path for file in manifest.files)):
        # A part without one of the columns has it by a default type, which others may not have.
        fields = [field for field in each.schema if ABSENT not in (field.metadata or {})]
        own, path = pa.schema(fields), each.files[0].path
        schema = unify_schemas([own]) if schema is None else join_schema(schema, path, own, columns)
    return replace(
        manifests[0],
        schema=manifests[0].schema if schema is None else schema,
        files=tuple(sorted((f for each in manifests for f in each.files), key=lambda f: f.path)),
        rows=np.concatenate([each.rows for each in manifests])[order],
        low=np.concatenate([each.low for each in manifests], axis=1)[:, order],
        high=np.concatenate([each.high for each in manifests], axis=1)[:, order],
    )


def merge_file_sets(file_sets: Sequence[FileSet]) -> FileSet:
    """Return a file set with the sources of all others."""
    first = file_sets[0]
    for i, file_set in enumerate(file_sets):
        if file_set.filesystem != first.filesystem or file_set.uri != first.uri:
            raise IncompatibleError(
                f"parts must be over files in the same file system; parts[{i}] is over another one"
            )
    sources = tuple(dict.fromkeys(source for file_set in file_sets for source in file_set.sources))
    folders = None
    if all(file_set.folders is not None for file_set in file_sets):
        folders = tuple(
            dict.fromkeys(each for file_set in file_sets for each in file_set.folders or ())
        )
    excluded: set[str] = set()
    for file_set in file_sets:
        others = (
            [other for other in file_sets if other is not file_set] if file_set.excluded else []
        )
        back = {path for other in others for path in other.files()}
        excluded |= file_set.excluded - back
    return replace(
        first, sources=sources, folders=folders, excluded=frozenset(excluded),
        immutable=all(file_set.immutable for file_set in file_sets),
    )  # fmt: skip
