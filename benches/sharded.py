"""A sharded build from Parquet batches: peak memory, and two threads against one.

    python benches/sharded.py --keys 100000000

Writes a Parquet file of distinct integers to a temporary folder, then builds the filter from its
batches with one thread and with two, each in its own process. The file and the spilled hashes take
about 25 bytes of disk per key.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import tamis

ROWS = 1 << 20
"""Keys per row group, and per batch."""


def write(path, keys):
    with pq.ParquetWriter(path, pa.schema([("key", pa.int64())]), compression="none") as out:
        for start in range(0, keys, ROWS):
            # An odd multiplier scatters the integers and keeps them distinct.
            numbers = np.arange(start, min(start + ROWS, keys), dtype=np.int64)
            out.write_table(pa.table({"key": numbers * np.int64(0x2545F4914F6CDD1D)}))


def build(path, threads, filter_name):
    """Build once, and print time, memory and size; runs in its own process."""
    batches = pq.ParquetFile(path).iter_batches(ROWS, columns=["key"])
    start = time.perf_counter()
    f = tamis.Sharded.from_batches(
        batches,
        filter=getattr(tamis, filter_name),
        fpr=2**-8,
        threads=threads,
        directory=path.parent,
    )
    seconds = time.perf_counter() - start
    sample = next(pq.ParquetFile(path).iter_batches(ROWS, columns=["key"]))
    assert f.contains(sample).all()
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        json.dumps({"seconds": seconds, "peak": peak, "shards": f.shards, "bits": f.bits_per_key})
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=100_000_000)
    parser.add_argument("--filter", default="Bloom", help="the class of the shards")
    parser.add_argument("--one", nargs=2, metavar=("FILE", "THREADS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        return build(Path(options.one[0]), int(options.one[1]), options.filter)
    with tempfile.TemporaryDirectory(prefix="tamis-bench-") as folder:
        path = Path(folder) / "keys.parquet"
        write(path, options.keys)
        seconds = {}
        for threads in (1, 2):
            command = [sys.executable, __file__, "--filter", options.filter]
            command += ["--one", str(path), str(threads)]
            run = subprocess.run(command, check=True, capture_output=True, text=True)
            result = json.loads(run.stdout)
            seconds[threads] = result["seconds"]
            print(
                f"{options.filter}, {options.keys:,} keys, {threads} thread(s): "
                f"{result['seconds']:.1f} s, peak {result['peak'] / 1e9:.2f} GB, "
                f"{result['shards']} shards, {result['bits']:.2f} bits per key"
            )
        print(f"two threads / one: {seconds[1] / seconds[2]:.2f} times as fast")


if __name__ == "__main__":
    main()
