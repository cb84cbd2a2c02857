"""CSV without pyarrow; with it, CSV is read as Arrow record batches."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import numpy.typing as npt


class CsvBatch(np.ndarray[Any, Any]):
    """Rows of text, one column per name. It is an array, so that a mask selects rows."""

    names: list[str]

    @classmethod
    def of(cls, rows: list[list[str]], names: list[str]) -> Self:
        """Create a batch of rows, each with a value for each name."""
        batch = np.array(rows, dtype=object).reshape(len(rows), len(names)).view(cls)
        batch.names = names
        return batch

    def __array_finalize__(self, other: Any) -> None:
        self.names = getattr(other, "names", [])

    def column(self, name: str) -> list[str]:
        """Return the values of a column."""
        values: list[str] = np.asarray(self)[:, self.names.index(name)].tolist()
        return values

    def append_column(self, name: str, values: npt.NDArray[Any]) -> CsvBatch:
        """Return the rows with a column at the end."""
        joined = [[*row, value] for row, value in zip(self.tolist(), values.tolist(), strict=True)]
        return CsvBatch.of(joined, [*self.names, name])


def column_names(batch: Any) -> list[str]:
    """Return the column names of a `CsvBatch` or an Arrow record batch."""
    return list(batch.names if isinstance(batch, CsvBatch) else batch.schema.names)


def read_csv(name: str, stream: Any, delimiter: str, batch_rows: int) -> Iterator[CsvBatch]:
    r"""Read a CSV file with a header, ``batch_rows`` rows at a time; ValueError if it is malformed.

    >>> [batch.column("b") for batch in read_csv("x", io.BytesIO(b"a,b\n1,2\n3,4\n"), ",", 10)]
    [['2', '4']]
    """
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    rows = filter(None, csv.reader(text, delimiter=delimiter, strict=True))
    try:
        names = next(rows, [])
        while several := list(itertools.islice(rows, batch_rows)):
            wrong = next((row for row in several if len(row) != len(names)), None)
            if wrong is not None:
                raise ValueError(
                    f"{name} has a row with {len(wrong)} values for {len(names)} columns"
                )
            yield CsvBatch.of(several, names)
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{name} is not a CSV file: {error}") from None
    finally:
        text.detach()
