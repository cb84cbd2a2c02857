"""The real data of the experiments: Parquet files that are not part of this repository.

They are read from the folder ``TAMIS_DATA``, by default ``../shared/data`` next to the repository.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

FOLDER = Path(os.environ.get("TAMIS_DATA", Path(__file__).parents[2] / "shared" / "data"))


def path(name: str) -> Path:
    """Return the file of a data set; `FileNotFoundError` if it is missing."""
    file = FOLDER / f"{name}.parquet"
    if not file.exists():
        raise FileNotFoundError(
            f"{file} does not exist; set TAMIS_DATA to the folder with the data"
        )
    return file


def table(name: str, columns: list[str] | None = None) -> pa.Table:
    """Read a data set."""
    import pyarrow.parquet as pq

    return pq.read_table(path(name), columns=columns)


def distinct(table: pa.Table) -> pa.Table:
    """Return the distinct rows, in the order of their first occurrence."""
    # One thread: with more, the order of the groups, and every sample of them, would vary.
    return table.group_by(table.column_names, use_threads=False).aggregate([])
