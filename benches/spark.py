"""Building and probing filters in Spark: CPU seconds of all processes, in one run.

    python benches/spark.py --keys 50000000 --rows 50000000

Everything is counted in CPU seconds, user and system, over the processes of the cluster: the Java
process and all Python workers, also those that ended. The start of Spark is not counted. Each step
runs once before it is measured, on a small input, so that classes are loaded and code is compiled.

* build: `tamis.spark.build` of a Ribbon filter, against `tamis.Sharded.from_batches` in one process
  over the same Parquet file.
* probe: the rows of a large table whose key is in a small one, by a sort-merge join, a broadcast
  join, a join with Spark's own runtime Bloom filter (``might_contain``), and
  `tamis.spark.semi_join`. All have the same result, which is checked. `tamis.spark.keep` probes a
  filter that exists already, and keeps the false positives too.
* growth: the build for 10⁶ keys and more, up to ``--keys``, and what 10⁹ would take if the cost per
  key of the largest build stayed the same: a projection, and named so.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 1 << 20
FPR = 0.01
TICK = os.sysconf("SC_CLK_TCK")
ODD = np.int64(0x2545F4914F6CDD1D)  # an odd multiplier scatters integers and keeps them distinct


class Processor:
    """CPU seconds of this process and its descendants, watched several times per second.

    Spark's Python workers end unseen after a minute without work: their parent ignores them, so
    that the system does not add their time to its own.
    """

    def __init__(self):
        self._seconds = {}
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self):
        while True:
            self.seconds()
            time.sleep(0.2)

    def seconds(self):
        """Return the seconds of all processes so far, also of those that ended."""
        children, seen = {}, {}
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                try:
                    stat = Path(entry.path, "stat").read_text()
                except (FileNotFoundError, ProcessLookupError):
                    continue
                fields = stat.rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
                # A number may be given again, but not with the same time of its start.
                seen[int(entry.name)] = (int(entry.name), fields[19]), sum(map(int, fields[11:13]))
        waiting = [os.getpid()]
        while waiting:
            process = waiting.pop()
            if process in seen:
                name, ticks = seen[process]
                self._seconds[name] = ticks / TICK
            waiting += children.get(process, [])
        return sum(list(self._seconds.values()))


class Cluster:
    """A session of Spark, whose Java process is a child of this one."""

    def __init__(self, folder, cores):
        from pyspark.sql import SparkSession

        os.environ["PYSPARK_PYTHON"] = sys.executable
        options = {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "4g",
            "spark.local.dir": folder,
            "spark.sql.warehouse.dir": folder,
            "spark.sql.shuffle.partitions": "32",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.optimizer.runtime.bloomFilter.creationSideThreshold": "10GB",
            "spark.sql.optimizer.runtime.bloomFilter.applicationSideScanSizeThreshold": "0",
        }
        builder = SparkSession.builder.master(f"local[{cores}]")
        for name, value in options.items():
            builder = builder.config(name, value)
        self.session = builder.getOrCreate()
        self.session.sparkContext.setLogLevel("ERROR")
        self.conf = self.session.conf
        self._processor = Processor()

    def measured(self, work):
        """Run work; return its result, and the CPU seconds of this process and the cluster."""
        before = self._processor.seconds()
        result = work()
        return result, self._processor.seconds() - before


def write(path, start, stop, step=1):
    with pq.ParquetWriter(path, pa.schema([("key", pa.int64())]), compression="none") as out:
        for first in range(start, stop, ROWS * step):
            numbers = np.arange(first, min(first + ROWS * step, stop), step, dtype=np.int64)
            out.write_table(pa.table({"key": numbers * ODD}))


def local_seconds(path, shards):
    """CPU seconds of a build in one process of its own, the start of Python aside."""
    code = (
        "import sys, time, tamis, pyarrow.parquet as pq\n"
        "begin = time.process_time()\n"
        f"batches = pq.ParquetFile({str(path)!r}).iter_batches({ROWS}, columns=['key'])\n"
        "keys = (batch.column(0) for batch in batches)\n"
        f"tamis.Sharded.from_batches(keys, fpr={FPR}, shards={shards})\n"
        "print(time.process_time() - begin)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def build_table(cluster, folder, most, shards):
    """Measure builds of growing size; print one line each."""
    import tamis.spark

    sizes = [size for size in (10**6, 10**7, 5 * 10**7, 10**8, 10**9) if size < most] + [most]
    print(f"build of a Ribbon filter, fpr {FPR}, {shards} shards")
    print(f"{'keys':>14} {'local CPU s':>12} {'Spark CPU s':>12} {'ratio':>6} {'wall s':>8}")
    for size in sizes:
        path = Path(folder, f"keys-{size}.parquet")
        write(path, 0, size)
        frame = cluster.session.read.parquet(str(path))
        local = local_seconds(path, shards)
        begin = time.perf_counter()
        built, spent = cluster.measured(
            lambda frame=frame: tamis.spark.build(frame, "key", fpr=FPR, shards=shards)
        )
        wall = time.perf_counter() - begin
        assert abs(len(built) - size) == 0
        print(
            f"{size:14,} {local:12.1f} {spent:12.1f} {spent / local:6.2f} {wall:8.1f}", flush=True
        )
        path.unlink()
    if most < 10**9:
        scale = 10**9 / most
        print(f"{10**9:14,} {local * scale:12.1f} {spent * scale:12.1f}  projected from {most:,}")
    return built.bits_per_key


def probe_table(cluster, folder, rows, keys, bits):
    """Measure joins with the same result; print one line each."""
    import tamis.spark

    session = cluster.session
    # One row in ten has a match.
    large, small = Path(folder, "large.parquet"), Path(folder, "small.parquet")
    write(large, 0, rows)
    write(small, 0, rows, max(rows // keys, 1))
    left = session.read.parquet(str(large)).selectExpr("key", "key AS value")
    right = session.read.parquet(str(small))

    def summed(frame):
        """Count the rows, and add their values, so that rows are read and moved whole."""
        return tuple(frame.selectExpr("count(*)", "sum(value % 1000)").first())

    def plain(hint):
        return summed(left.join(right.hint(hint), "key", "left_semi"))

    def might_contain():
        cluster.conf.set("spark.sql.optimizer.runtime.bloomFilter.enabled", "true")
        cluster.conf.set("spark.sql.optimizer.runtime.bloomFilter.maxNumItems", str(keys))
        cluster.conf.set("spark.sql.optimizer.runtime.bloomFilter.expectedNumItems", str(keys))
        max_bits = "spark.sql.optimizer.runtime.bloomFilter.maxNumBits"
        cluster.conf.set(max_bits, str(bloom_bits(keys)))
        # Spark makes the filter only if the small side has a predicate, which here keeps all rows.
        some = right.where(f"key > {-(2**63) + 1}").hint("merge")
        joined = left.join(some, "key", "left_semi")
        plan = joined._jdf.queryExecution().optimizedPlan().toString()
        assert "might_contain" in plan, plan
        return summed(joined)

    def thinned():
        return summed(tamis.spark.semi_join(left, right, "key", fpr=FPR))

    filter = tamis.spark.build(right, "key", fpr=FPR, shards=32)

    def kept():
        return summed(tamis.spark.keep(left, "key", filter))

    steps = {
        "sort-merge join": (lambda: plain("merge"), None),
        "broadcast join": (lambda: plain("broadcast"), None),
        "might_contain + sort-merge join": (might_contain, bloom_bits(keys) / keys),
        "tamis.spark.semi_join": (thinned, bits),
        "tamis.spark.keep": (kept, filter.bits_per_key),
    }
    cluster.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    cluster.conf.set("spark.sql.optimizer.runtime.bloomFilter.enabled", "false")
    print(f"\nprobing {rows:,} rows with {keys:,} keys, fpr {FPR}")
    print(f"{'':32} {'CPU s':>8} {'of sort-merge':>14} {'bits per key':>13}")
    first, expected = None, None
    for name, (work, each) in steps.items():
        cluster.conf.set("spark.sql.optimizer.runtime.bloomFilter.enabled", "false")
        found, spent = cluster.measured(work)
        expected = found if expected is None else expected
        if work is kept:
            errors = (found[0] - expected[0]) / (rows - expected[0])
            assert 0 <= errors < 1.1 * FPR, errors
        else:
            assert found == expected, (name, found, expected)
        first = spent if first is None else first
        shown = "" if each is None else f"{each:.2f}"
        print(f"{name:32} {spent:8.1f} {spent / first:14.2f} {shown:>13}", flush=True)


def bloom_bits(keys):
    """Bits of a Bloom filter of this rate, as Spark's classic layout has them."""
    return int(np.ceil(-keys * np.log(FPR) / np.log(2) ** 2))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=50_000_000)
    parser.add_argument("--rows", type=int, default=50_000_000)
    parser.add_argument("--small", type=int, help="keys of the small side (default: rows / 10)")
    parser.add_argument("--shards", type=int, default=32)
    parser.add_argument("--cores", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tamis-bench-") as folder:
        cluster = Cluster(folder, arguments.cores)
        import tamis.spark

        warm = cluster.session.range(100_000)
        kept = tamis.spark.build(warm, "id", fpr=FPR, shards=2)
        tamis.spark.keep(warm, "id", kept).count()
        warm.join(warm.hint("merge"), "id", "left_semi").count()
        bits = build_table(cluster, folder, arguments.keys, arguments.shards)
        small = arguments.small or arguments.rows // 10
        probe_table(cluster, folder, arguments.rows, small, bits)
        cluster.session.stop()


if __name__ == "__main__":
    main()
