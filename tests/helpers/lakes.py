"""Shared by the tests of parquet."""

import datetime

import numpy as np
import pytest
from edge_values import TYPES as KEY_TYPES
from frames import with_values

from tamis.parquet import SkippingIndex
from tamis.parquet.column_types import column_type

pa = pytest.importorskip("pyarrow")


pq = pytest.importorskip("pyarrow.parquet")


UTC = datetime.UTC


TYPES = {name: row for name, row in KEY_TYPES.items() if column_type(row[0])}


def users(start, count, step=1):
    """A table of users of which each has a few rows, and some rows have none."""
    names = [None if i % 17 == 0 else f"user {i % 97}" for i in range(start, start + count, step)]
    return pa.table({"user": names, "n": np.arange(start, start + count, step)})


def build(lake, **options):
    options.setdefault("columns", ["user"])
    return SkippingIndex.build(lake / "*.parquet", path=lake / "index.tamis", **options)


def full_scan(files, where):
    """All rows that are as asked, by reading every file: the obvious twin of `scan`."""
    rows = [row for file in sorted(files) for row in pq.ParquetFile(file).read().to_pylist()]
    for column, wanted in where.items():
        wanted = wanted if isinstance(wanted, list) else [wanted]
        rows = [row for row in rows if row.get(column) in wanted]
    return sorted(rows, key=lambda row: row["n"])


def agrees(ix, folder, where):
    """Whether scan, dataset and row groups have every row that a full scan has, and no other."""
    files = [str(path) for path in folder.glob("*.parquet")]
    expected = full_scan(files, where)
    for table in (ix.scan(where), ix.dataset(where).to_table()):
        assert sorted(table.to_pylist(), key=lambda row: row["n"]) == expected
    assert ix.dataset(where).count_rows() == len(expected)
    held = [
        row
        for path, number in ix.row_groups(where)
        for row in pq.ParquetFile(path).read_row_group(number).to_pylist()
    ]
    assert all(row in held for row in expected)


def flipped(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << place % 8
    path.write_bytes(content)


def forge(path, change):
    """Change both JSON documents of an index, with right checksums."""
    path.write_bytes(with_values(path.read_bytes(), change))


def with_sources(**sources):
    def change(content):
        content["sources"].update(sources)
        return content

    return change
