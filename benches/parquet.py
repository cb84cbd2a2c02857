"""Point lookups: through a skipping index, and by engines that read the same files without one.

A million requests of `trace_twitter52` with a payload (or synthetic keys of similar skew, without
the data) in ten files of a hundred row groups. Each task looks up the same keys, one by one, and
fetches all their rows. All files have zones; a second set has Parquet's own Bloom filters. In
every round each contender is timed once, by wall clock and by the processor time of all its
threads, which depends less on other load; ratios are taken within a round.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from measure import Ratio, print_table

import tamis

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))
import data

OURS = "tamis scan"


def keys_of(rows):
    """Return the keys of real requests, or synthetic keys of similar skew."""
    try:
        return data.table("trace_twitter52", ["key"])["key"].to_numpy()[:rows], "trace_twitter52"
    except FileNotFoundError:
        drawn = np.random.default_rng(0).zipf(1.2, rows).astype(np.uint64)
        return drawn * np.uint64(0x9E3779B97F4A7C15), "drawn by Zipf's law"


def write(folder, keys, files, groups):
    """Write the same rows twice: with pyarrow, and with DuckDB and its Bloom filters."""
    rng = np.random.default_rng(1)
    per_file = len(keys) // files
    size = per_file // groups
    for name in ("plain", "bloom"):
        (folder / name).mkdir()
    for i in range(files):
        part = keys[i * per_file : (i + 1) * per_file]
        table = pa.table(
            {
                "key": part,
                "n": np.arange(i * per_file, (i + 1) * per_file),
                "payload": pa.array(rng.integers(0, 2**62, len(part)).astype(str)),
            }
        )
        plain, bloom = (folder / name / f"{i:02}.parquet" for name in ("plain", "bloom"))
        pq.write_table(table, plain, row_group_size=size)
        options = {"key": {"ndv": size, "fpp": 0.01}}
        pq.write_table(table, bloom, row_group_size=size, bloom_filter_options=options)


def contenders(folder, memory):
    plain, bloom = str(folder / "plain" / "*.parquet"), str(folder / "bloom" / "*.parquet")
    path = folder / "index.tamis"
    tamis.parquet.SkippingIndex.build(plain, columns=["key"], path=path)
    ix = tamis.parquet.SkippingIndex.open(path, memory=memory)
    rested = tamis.parquet.SkippingIndex.open(path, memory=memory, recheck=60)
    connection = duckdb.connect()
    connection.execute("set threads to 2")

    def engine(source):
        query = f"select * from read_parquet('{source}') where key = ?"
        return lambda key: len(connection.execute(query, [key]).fetchall())

    def through_duckdb(key):
        rows = rested.dataset({"key": key})  # noqa: F841 (DuckDB finds it by name)
        return len(duckdb.sql("select * from rows").fetchall())

    def through_polars(key):
        return pl.scan_pyarrow_dataset(rested.dataset({"key": key})).collect().height

    def polars(key):
        wanted = pl.lit(key, dtype=pl.UInt64)
        return pl.scan_parquet(plain).filter(pl.col("key") == wanted).collect().height

    return ix, {
        OURS: lambda key: ix.scan({"key": key}).num_rows,
        "tamis scan, recheck=60": lambda key: rested.scan({"key": key}).num_rows,
        "tamis → DuckDB": through_duckdb,
        "tamis → Polars": through_polars,
        "DuckDB": engine(plain),
        "DuckDB, Parquet's Bloom filters": engine(bloom),
        "Polars": polars,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, fewer rounds")
    parser.add_argument("--memory", default="4MB")
    arguments = parser.parse_args()
    scale = 10 if arguments.quick else 1
    keys, where = keys_of(1_000_000 // scale)
    values, counts = np.unique(keys, return_counts=True)
    rng = np.random.default_rng(2)
    rare = values[counts <= 3]
    groups = {
        "rare": rng.choice(rare, 8 if arguments.quick else 10).tolist(),
        "absent": rng.integers(0, 2**63, 8 if arguments.quick else 10).tolist(),
    }
    folder = Path(tempfile.mkdtemp())
    try:
        write(folder, keys, 10, 100 // scale)
        ix, tasks = contenders(folder, arguments.memory)
        print(
            f"{len(keys):,} rows, keys of {where}, {len(ix)} row groups in 10 files; an index of "
            f"{ix.size_in_bytes / 1e6:.1f} MB in memory, expected rate {ix.expected_fpr:.2g}"
        )
        skipping(folder, ix, groups)
        for name, asked in groups.items():
            compare(name, keys, asked, tasks, 2 if arguments.quick else 5)
    finally:
        shutil.rmtree(folder)


def skipping(folder, ix, groups):
    """Print the fraction of row groups that zones, Parquet's Bloom filters and the index skip."""
    footers = [pq.read_metadata(path) for path in sorted((folder / "plain").iterdir())]
    zones = [
        footer.row_group(i).column(0).statistics
        for footer in footers
        for i in range(footer.num_row_groups)
    ]
    low, high = (np.array([getattr(zone, end) for zone in zones]) for end in ("min", "max"))
    bloom = str(folder / "bloom" / "*.parquet")
    probe = f"select avg(bloom_filter_excludes::int) from parquet_bloom_probe('{bloom}', 'key', "
    lengths = f"select sum(bloom_filter_length) from parquet_metadata('{bloom}')"
    [(size,)] = duckdb.sql(lengths).fetchall()
    rows = [["zones", f"{16 * len(zones):,}"], ["Parquet's Bloom filters", f"{size:,}"]]
    rows.append(["tamis", f"{ix.size_in_bytes:,}"])
    for asked in groups.values():
        own = [1 - len(ix.row_groups({"key": key})) / len(ix) for key in asked]
        by_zone = [np.mean((low > key) | (high < key)) for key in asked]
        by_bloom = [duckdb.sql(f"{probe}{key}::ubigint)").fetchall()[0][0] for key in asked]
        for row, rates in zip(rows, (by_zone, by_bloom, own), strict=True):
            row.append(f"{np.mean(rates):.4f}")
    print()
    print_table(["row groups skipped by", "bytes", *groups], rows, left={0})


def compare(name, keys, asked, tasks, rounds):
    expected = [int(np.count_nonzero(keys == np.uint64(key))) for key in asked]
    clocks = {"clock": time.perf_counter, "processor": time.process_time}
    times = {clock: {task: [] for task in tasks} for clock in clocks}
    for number in range(rounds):
        turn = list(tasks)
        for task in [*turn[number % len(turn) :], *turn[: number % len(turn)]]:
            begin = {clock: read() for clock, read in clocks.items()}
            found = [tasks[task](key) for key in asked]
            for clock, read in clocks.items():
                times[clock][task].append((read() - begin[clock]) / len(asked) * 1e3)
            assert found == expected, f"{task} misses rows"
    print(f"\n{name} keys, {sum(expected) / len(asked):.1f} rows each; ms, and times the scan's")
    rows = []
    for task in tasks:
        row = [task]
        for each in times.values():
            row += [f"{statistics.median(each[task]):.2f}", str(Ratio.of(each[task], each[OURS]))]
        rows.append(row)
    print_table(["lookups by", "clock", "ratio", "processor", "ratio"], rows, left={0})


if __name__ == "__main__":
    main()
