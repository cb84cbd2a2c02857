"""The real data of the experiments: Parquet files that are not part of this repository.

They lie in the folder that ``TAMIS_DATA`` names, or else in ``../shared/data`` beside the project.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

FOLDER = Path(os.environ.get("TAMIS_DATA", Path(__file__).parents[2] / "shared" / "data"))


def path(name: str) -> Path:
    """Return the file of a data set, or raise `FileNotFoundError` that says where it was sought."""
    file = FOLDER / f"{name}.parquet"
    if not file.exists():
        raise FileNotFoundError(f"{file} is not there; set TAMIS_DATA to the folder that has it")
    return file


def table(name: str, columns: list[str] | None = None) -> pa.Table:
    """Read a data set."""
    import pyarrow.parquet as pq

    return pq.read_table(path(name), columns=columns)


def distinct(table: pa.Table) -> pa.Table:
    """Return the rows without repetitions, in the order in which they come first."""
    # One thread: with more, the order of the groups, and all that is drawn from it, would vary.
    return table.group_by(table.column_names, use_threads=False).aggregate([])
