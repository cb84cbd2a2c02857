"""Shared by the tests of files."""

import pyarrow as pa
import pyarrow.parquet as pq
from object_store import arrow_of, options_of, s3fs_of

SETS = {f"set {i}": range(i * 200_000, (i + 1) * 200_000) for i in range(8)}


CLIENTS = {
    "obstore": lambda s3: {"storage_options": options_of(s3)},
    "s3fs": lambda s3: {"filesystem": s3fs_of(s3)},
    "pyarrow": lambda s3: {"filesystem": arrow_of(s3)},
}


def path_for(client, path):
    """A URL for obstore, and a path in a file system."""
    return f"s3://{path}" if client == "obstore" else path


def count(requests, *kinds):
    return sum(each.kind in kinds for each in requests)


def chain(error):
    """An error and its causes, as they would be printed."""
    while error is not None:
        yield repr(error)
        error = None if error.__suppress_context__ else error.__cause__ or error.__context__


def write_events(filesystem, folder, days=12, start=0):
    for day in range(start, start + days):
        table = pa.table({"user": [f"u{i % 50 + day * 50}" for i in range(200)], "n": range(200)})
        pq.write_table(table, f"{folder}/{day}.parquet", filesystem=filesystem, row_group_size=50)
