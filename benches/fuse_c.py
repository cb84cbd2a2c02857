"""Fuse filters built from hashes, beside the C code of their authors, in processor time.

    python benches/fuse_c.py
    python benches/fuse_c.py --keys 1000000 --rounds 9

pyfusefilter contains xor_singleheader, whose ``binary_fuse8_populate`` takes an array of 64-bit
integers. Ours takes 128-bit hashes as `tamis.split` writes them, which it reads and from which it
removes duplicates. Both have 8-bit fingerprints; times are of all threads, medians of rounds in
which they take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keys", type=int, nargs="+", default=[10**6, 10**7])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    try:
        in_c(np.arange(10, dtype=np.uint64))
    except ImportError as missing:
        print(f"skipped: {missing}")
        return
    print(f"{'keys':>12} {'C, ns':>7} {'ours, ns':>9}  ratio (target 1.0)")
    for count in options.keys:
        keys = np.random.default_rng(1).integers(0, 1 << 63, count, dtype=np.uint64)
        (parts,) = tamis.split(keys, 1)
        builds = (
            lambda keys=keys: in_c(keys),
            lambda parts=parts: tamis.Fuse.from_hashes(parts, fpr=2**-8),
        )
        times = list[list[float]]()
        for _ in range(options.rounds):
            round_times = []
            for build in builds:
                begin = time.process_time()
                build()
                round_times.append((time.process_time() - begin) / count * 1e9)
            times.append(round_times)
        theirs, ours = (statistics.median(column) for column in zip(*times, strict=True))
        ratio = statistics.median(ours / theirs for theirs, ours in times)
        print(f"{count:>12,} {theirs:>7.1f} {ours:>9.1f}  {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
