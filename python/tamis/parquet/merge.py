"""Indexes that were built in parts, such as one per file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from tamis.collection import Collection
from tamis.collection.merge import copy_filters
from tamis.errors import IncompatibleError
from tamis.parquet.column_types import ABSENT
from tamis.parquet.file_set import FileSet
from tamis.parquet.manifest import Manifest
from tamis.parquet.schema import join_schema, unify_schemas
from tamis.parquet.state import State


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
