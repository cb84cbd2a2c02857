"""What the checks of Parquet pages cost a scan: processor time with them, and without.

    .venv/bin/python benches/pages.py

Scans find the rows of one key in files of several shapes, with `tamis._pages.ParquetReader` and
with a reader that trusts the file. In every round both take turns; ratios are medians over
rounds: of scans of row groups that were read before, and of the first scans.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tamis._pages import ParquetReader
from tamis.parquet import SkippingIndex, scanning

GROUP = 10_000


class Trusting:
    """Reads a file as pyarrow does, whatever it claims."""

    def __init__(self, source, path, *, footer, groups, pre_buffer, verified):
        self._file = pq.ParquetFile(source, metadata=footer, pre_buffer=pre_buffer)
        self.schema = self._file.schema_arrow

    def batches(self, rows, columns, **options):
        return self._file.iter_batches(rows, columns=columns, **options)


def tables(rows):
    """Return tables by name; `n` is what is looked up."""
    rng = np.random.default_rng(1)
    n = np.arange(rows)
    text = pa.array([f"{number:016x}" for number in rng.integers(0, 1 << 62, rows).tolist()])
    words = pa.array([f"word {number}" for number in rng.zipf(1.3, rows).tolist()])
    wide = {f"c{i}": rng.integers(0, 1 << 62, rows) for i in range(30)}
    return {
        "integers": pa.table({"n": n, "m": rng.integers(0, 1 << 62, rows)}),
        "distinct text": pa.table({"n": n, "text": text}),
        "repeated text": pa.table({"n": n, "text": words}),
        "32 columns": pa.table({"n": n, "text": text, **wide}),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=51)
    parser.add_argument("--pages", type=int, default=1 << 20, help="bytes of a page")
    options = parser.parse_args()
    print(f"{'file':<16}{'trusting, ms':>14}{'checked, ms':>14}{'ratio':>8}{'first ratio':>13}")
    for name, table in tables(options.rows).items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "a.parquet"
            pq.write_table(table, path, row_group_size=GROUP, data_page_size=options.pages)
            SkippingIndex.build(path, columns="n", threads=1, path=Path(folder) / "index")
            first, again = measured(Path(folder) / "index", options.rows, options.rounds)
        trusting, checked = (1e3 * statistics.median(times) for times in zip(*again, strict=True))
        ratios = (statistics.median(c / t for t, c in times) for times in (again, first))
        print(
            f"{name:<16}{trusting:>14.2f}{checked:>14.2f}{next(ratios):>8.2f}{next(ratios):>13.2f}"
        )


def measured(path, rows, rounds):
    """Return the times of a scan, trusting and checked: of a new index, and of one used before."""
    first, again = [], []
    for turn in range(rounds):
        found = {}
        readers = [(Trusting, 0), (ParquetReader, 1)][:: 1 if turn % 2 else -1]
        for reader, which in readers:
            scanning.ParquetReader = reader
            index = SkippingIndex.open(path, threads=1)
            for use in (0, 1):
                start = time.process_time()
                for key in range(turn * 7919 % GROUP, rows, GROUP):
                    assert index.scan({"n": key}).num_rows == 1
                found[use, which] = (time.process_time() - start) * GROUP / rows
        first.append((found[0, 0], found[0, 1]))
        again.append((found[1, 0], found[1, 1]))
    return first, again


if __name__ == "__main__":
    main()
