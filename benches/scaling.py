"""What a key costs in sets of different sizes: build and query of every kind, in ns per key.

    python benches/scaling.py                              # 10⁷ keys, and 10⁸
    python benches/scaling.py --sizes 10000000 300000000   # needs about 16 GB of memory
    python benches/scaling.py --kinds "Fuse, 3-wise" "Sharded Ribbon" --rounds 1
    python benches/scaling.py --results scaling.jsonl      # continues where an earlier run stopped

Each measurement is a process of its own, and sizes take turns. Times are wall times, the least of
the rounds: of builds with all cores, and of queries in batches of 4 million keys from NumPy
integers, the least of four. The ratios are to the smallest size.

A small filter is in a cache and a large one is not, so queries of the large one take longer,
whatever the kind. Most kinds answer such batches in the order of their memory (`src/ordered.rs`);
Bloom filters that are not blocked, and AdaptiveCuckoo, look all over it for each key. The column
"read" says how much memory alone costs: one random read per key from an array of the filter's size,
with as many threads. It is a rough measure: the reads of the small array vary two- or threefold
between runs, with what else uses the cache, and a query makes several. "memory" marks queries whose
ratio is above 2 but not above the ratio of these reads, "over" queries above both, and builds
above 2.

The last lines compare the sharded ribbon with the plain one. A kind for which the machine has too
little memory is left out. With ``--results``, each measurement is appended to that file, and those
already in it are not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import tamis
from tamis.filters import CLASSES
from tamis.planning.kinds import KINDS

QUERIES = 1 << 22
FPR = 2**-8
MOST = 2.0
"""The most that a key should cost in the largest set, over the smallest."""
SHARDED, PLAIN = "Sharded Ribbon", "Ribbon"


def kinds() -> dict[str, tuple[Any, dict[str, Any]]]:
    """Every option of every kind that is built from keys and a rate, and the sharded ribbon."""
    found: dict[str, tuple[Any, dict[str, Any]]] = {
        option.name: (CLASSES[kind.name], {"fpr": FPR, **option.arguments})
        for kind in KINDS.values()
        if kind.sizes
        for option in kind.options
    }
    return {**found, SHARDED: (tamis.Sharded, {"fpr": FPR})}


def keys_from(start: int, count: int) -> Any:
    """Distinct integers: an odd multiplier scatters them, in place."""
    keys = np.arange(start, start + count, dtype=np.int64)
    keys *= np.int64(0x2545F4914F6CDD1D)
    return keys


def random_read(size: int) -> float:
    """Return ns per random read of one byte from an array of this size, with all cores."""
    threads = os.cpu_count() or 1
    memory = np.ones(size, dtype=np.uint8)
    places = np.random.default_rng(1).integers(0, size, QUERIES)
    found = np.empty(QUERIES, dtype=np.uint8)

    def read(share: int) -> None:
        part = slice(QUERIES * share // threads, QUERIES * (share + 1) // threads)
        memory.take(places[part], out=found[part], mode="clip")

    with ThreadPoolExecutor(threads) as pool:
        times = []
        for _ in range(4):
            begin = time.perf_counter()
            list(pool.map(read, range(threads)))
            times.append(time.perf_counter() - begin)
    return min(times) / QUERIES * 1e9


def measure(name: str, count: int) -> dict[str, float]:
    """Build and query once; runs in a process of its own."""
    cls, arguments = kinds()[name]
    keys = keys_from(0, count)
    begin = time.perf_counter()
    f = cls.build(keys, **arguments)
    build = (time.perf_counter() - begin) / count * 1e9
    present = keys[np.random.default_rng(1).integers(0, count, min(QUERIES, count))]
    del keys
    absent = keys_from(count, QUERIES)

    def query(batch: Any) -> float:
        times = []
        for _ in range(4):
            begin = time.perf_counter()
            f.contains(batch)
            times.append(time.perf_counter() - begin)
        return min(times) / len(batch) * 1e9

    return {
        "build": build,
        "absent": query(absent),
        "present": query(present),
        "read": random_read(f.size_in_bits // 8),
        "bits": f.bits_per_key,
        "peak": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e9,
        "attempts": getattr(f, "_attempts", 1),
    }


def in_process(name: str, count: int) -> dict[str, float] | None:
    command = [sys.executable, __file__, "--one", name, "--sizes", str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and "MemoryError" not in done.stderr and done.returncode != -9:
        raise RuntimeError(done.stderr)
    return None if done.returncode else json.loads(done.stdout)


def measured_once(
    name: str, count: int, number: int, results: Path | None
) -> dict[str, float] | None:
    """Return measurement ``number`` of a kind, from the file of results if it is there."""
    what = [name, count, number]
    if results is None:
        return in_process(name, count)
    if results.exists():
        for line in results.read_text().splitlines():
            done = json.loads(line)
            if done["what"] == what:
                run: dict[str, float] | None = done["run"]
                return run
    run = in_process(name, count)
    with results.open("a") as out:
        print(json.dumps({"what": what, "run": run}), file=out)
    return run


def verdict(build: float, query: float, read: float) -> str:
    """Say whether a kind costs more than `MOST` times as much, and if memory alone does."""
    if build > MOST or query > max(MOST, read):
        return "  over"
    return "  memory" if query > MOST else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10**7, 10**8])
    parser.add_argument("--kinds", nargs="+", choices=kinds(), default=list(kinds()))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--results", type=Path, help="a file of measurements to continue")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.sizes[0])))
        return
    what = f"{'build':>7} {'absent':>7} {'present':>7} {'read':>6}"
    print(f"{'':<17} {'keys':>12} {what}   {what}  bits/key  peak GB")
    all_times: dict[tuple[str, int], dict[str, float]] = {}
    for name in options.kinds:
        runs: dict[int, list[dict[str, float]]] = {count: [] for count in options.sizes}
        for number in range(options.rounds):
            for count in options.sizes:
                run = measured_once(name, count, number, options.results)
                runs[count] += [run] if run else []
        for count, measured in runs.items():
            if not measured:
                print(f"{name:<17} {count:>12,}  not enough memory")
                continue
            best = {what: min(run[what] for run in measured) for what in measured[0]}
            all_times[name, count] = best
            first = all_times.get((name, options.sizes[0]), best)
            build, absent, present, read = (
                best[what] / first[what] for what in ("build", "absent", "present", "read")
            )
            attempts = f"  {best['attempts']} attempts" if best["attempts"] > 1 else ""
            print(
                f"{name:<17} {count:>12,} {best['build']:>7.1f} {best['absent']:>7.1f} "
                f"{best['present']:>7.1f} {best['read']:>6.1f}   {build:>7.2f} {absent:>7.2f} "
                f"{present:>7.2f} {read:>6.2f}  {best['bits']:>8.2f} {best['peak']:>8.1f}"
                f"{attempts}{verdict(build, max(absent, present), read)}",
                flush=True,
            )
    for count in options.sizes:
        if {(SHARDED, count), (PLAIN, count)} <= all_times.keys():
            sharded, plain = all_times[SHARDED, count], all_times[PLAIN, count]
            absent, present = (sharded[what] / plain[what] for what in ("absent", "present"))
            print(
                f"{SHARDED} / {PLAIN}, {count:,} keys: absent {absent:.2f}, present {present:.2f}"
            )


if __name__ == "__main__":
    main()
