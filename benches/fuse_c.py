"""Builds of fuse filters, compared with the C code of their authors.

    python benches/fuse_c.py
    python benches/fuse_c.py --keys 1000000 --rounds 9

pyfusefilter contains xor_singleheader, whose ``binary_fuse8_populate`` takes an array of 64-bit
integers, in any order, and mixes them with a seed, on one core. `tamis.Fuse.build` takes the same
array and hashes it to 128 bits; ``from_hashes`` takes hashes as `tamis.split` writes them, checks
and de-duplicates them. Both use all cores. All have 8-bit fingerprints. "cpu" is the time of all
threads and "wall" the elapsed time, both in ns per key: medians of rounds in which all take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import tamis


def in_c(keys: Any) -> None:
    """Build and free a filter."""
    from pyfusefilter._xorfilter import ffi, lib

    f = ffi.new("binary_fuse8_t*")
    lib.binary_fuse8_allocate(len(keys), f)
    # It may reorder the keys.
    pointer = ffi.cast("uint64_t*", ffi.from_buffer(keys.copy()))
    if not lib.binary_fuse8_populate(pointer, len(keys), f):
        raise RuntimeError("no filter was found")
    lib.binary_fuse8_free(f)


def timed(build: Callable[[], object], keys: int) -> tuple[float, float]:
    """Return CPU and wall time, in ns per key."""
    clocks = (time.process_time, time.perf_counter)
    begins = [clock() for clock in clocks]
    build()
    cpu, wall = (clock() - begin for clock, begin in zip(clocks, begins, strict=True))
    return cpu / keys * 1e9, wall / keys * 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keys", type=int, nargs="+", default=[10**6, 10**7])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    try:
        in_c(np.arange(10, dtype=np.uint64))
    except ImportError as missing:
        print(f"skipped: {missing}")
        return
    print(f"{'keys':>12} {'':<12} {'cpu':>6} {'wall':>6}  over C (target 1.0 in wall time)")
    for count in options.keys:
        keys = np.random.default_rng(1).integers(0, 1 << 63, count, dtype=np.uint64)
        parts = tamis.split(keys, 1)
        builds: dict[str, Callable[[], object]] = {
            "C": lambda keys=keys: in_c(keys),
            "build": lambda keys=keys: tamis.Fuse.build(keys, fpr=2**-8),
            "from_hashes": lambda parts=parts: tamis.Fuse.from_hashes(*parts, fpr=2**-8),
        }
        rounds = [
            {name: timed(build, count) for name, build in builds.items()}
            for _ in range(options.rounds)
        ]
        for name in builds:
            cpu, wall = (statistics.median(each[name][i] for each in rounds) for i in (0, 1))
            over = (
                statistics.median(each[name][i] / each["C"][i] for each in rounds) for i in (0, 1)
            )
            ratios = "" if name == "C" else "  cpu {:.2f}, wall {:.2f}".format(*over)
            print(f"{count:>12,} {name:<12} {cpu:>6.1f} {wall:>6.1f}{ratios}", flush=True)


if __name__ == "__main__":
    main()
