"""Footers of Parquet files, and one schema for all files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from tamis.errors import FormatError
from tamis.parquet import column_types
from tamis.parquet.file_set import FileSet


def read_footer(file_set: FileSet, path: str) -> pq.FileMetaData:
    """Read the footer of a file; `FormatError` if it is damaged or promises too much."""
    try:
        with file_set.filesystem.open_input_file(path) as source:
            size, footer = source.size(), pq.read_metadata(source)
            footer.schema.to_arrow_schema()
    except (FileNotFoundError, PermissionError):
        raise
    except (pa.ArrowException, OSError) as error:
        raise FormatError(f"{path}: {error}") from error
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        for column in range(group.num_columns):
            chunk = group.column(column)
            start = chunk_start(chunk)
            end = start + chunk.total_compressed_size
            flat = footer.schema.column(column).max_repetition_level == 0
            if not 0 <= start <= end <= size or (flat and chunk.num_values != group.num_rows):
                raise FormatError(
                    f"{path}: row group {number} claims {chunk.num_values} values in bytes {start} "
                    f"to {end} for {group.num_rows} rows in a file of {size} bytes"
                )
    return footer


def chunk_start(chunk: pq.ColumnChunkMetaData) -> int:
    """Return the position of a column chunk, as pyarrow computes it."""
    data: int = chunk.data_page_offset
    dictionary: int | None = chunk.dictionary_page_offset
    return dictionary if dictionary is not None and 0 < dictionary < data else data


def file_schema(footer: pq.FileMetaData, columns: Iterable[str]) -> pa.Schema:
    """Return the schema of a file, without the columns among these that have no type.

    Writers that infer types, such as pandas, have none for a column of nothing but nulls; it is as
    if the file lacked it.
    """
    schema = footer.schema.to_arrow_schema()
    untyped = {field.name for field in schema if pa.types.is_null(field.type)} & set(columns)
    return pa.schema([field for field in schema if field.name not in untyped])


def check_types(path: str, schema: pa.Schema, columns: Mapping[str, str]) -> None:
    """Raise if an indexed column has another type in a file."""
    for name, kind in columns.items():
        own = schema.field(name).type if name in schema.names else None
        if own is not None and column_types.column_type(own) != kind:
            raise TypeError(
                f"column {name} must be {kind} as in other files, but is {own} in {path}"
            )


def join_schema(
    known: pa.Schema, path: str, schema: pa.Schema, columns: Mapping[str, str]
) -> pa.Schema:
    """Add the schema of a file to the schema of other files; raise if its types do not agree."""
    check_types(path, schema, columns)
    if len(set(schema)) == len(schema) and set(schema) <= set(known):
        return known
    try:
        return unify_schemas([known, schema])
    except (pa.ArrowException, ValueError) as error:
        raise TypeError(f"columns must be as in other files, but not in {path}: {error}") from None


def unify_schemas(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Merge the schemas of files: all columns, in types that hold the values of every file."""
    columns: dict[str, dict[pa.Field, None]] = {}
    for schema in schemas:
        if len(set(schema.names)) < len(schema.names):
            raise ValueError(f"names of columns must be distinct, not {', '.join(schema.names)}")
        for field in schema:
            columns.setdefault(field.name, {})[field] = None
    return pa.schema([_unify_fields(list(fields)) for fields in columns.values()])


def _unify_fields(fields: list[pa.Field]) -> pa.Field:
    kinds = column_types.unifiable(column_types.filterable(field.type) for field in fields)
    alone = [
        pa.schema([field.with_type(kind).remove_metadata()])
        for field, kind in zip(fields, kinds, strict=True)
    ]
    merged = pa.unify_schemas(alone, promote_options="permissive").field(0)
    zones = {field.type.tz for field in fields if pa.types.is_timestamp(field.type)}
    read_only = len(zones) > 1 or any(
        column_types.filterable(field.type) != field.type
        or column_types.READ_ONLY in (field.metadata or {})
        for field in fields
    )
    return merged.with_metadata({column_types.READ_ONLY: ""}) if read_only else merged


def find_column_types(columns: Sequence[str], footers: Sequence[pq.FileMetaData]) -> dict[str, str]:
    """Return the type of each column, by the first file that has it."""
    typed = [file_schema(footer, columns) for footer in footers]
    untyped = [footer.schema.to_arrow_schema() for footer in footers]
    types = {field.name: field.type for schema in reversed(typed + untyped) for field in schema}
    found = {}
    for name in columns:
        if name not in types:
            raise ValueError(f"columns must be among {', '.join(types)}, not {name!r}")
        kind = column_types.column_type(types[name])
        if kind is None:
            raise TypeError(
                f"columns must be of type {', '.join(column_types.ACCEPTED)}, "
                f"but {name!r} is {types[name]}"
            )
        found[name] = kind
    return found
