"""Hashing of whole columns, in two builds of the native module.

    python benches/columns.py --against OTHER/_native.abi3.so

Prints the time per key for columns of 10⁶ keys, and with ``--against`` the ratio to another build:
the median of rounds in which both take turns. This is how a check on the way from column to hash
(of Arrow's offsets and views, say) shows what it costs.
"""

import argparse
import importlib.util
import statistics
import time

import numpy as np
import pyarrow as pa

from tamis import _native


def columns(count):
    """Return columns of distinct keys, by name."""
    numbers = np.random.default_rng(0).integers(0, 1 << 62, count)
    short = pa.array([f"{number:x}"[:10] for number in numbers.tolist()])
    text = pa.array([f"user-{number:016x}" for number in numbers.tolist()])
    return {
        "int64": pa.array(numbers),
        "string, 10 bytes": short,
        "string, 21 bytes": text,
        "large_string": text.cast(pa.large_string()),
        "string_view, inline": short.cast(pa.string_view()),
        "string_view": text.cast(pa.string_view()),
        "dictionary": text.take(pa.array(numbers % 1000)).dictionary_encode(),
        "string, in 1000 chunks": pa.chunked_array(
            [text.slice(at, 1000) for at in range(0, count, 1000)]
        ),
        "NumPy int64": numbers,
    }


def opened(path):
    """Return the native module in this file, in addition to the one that is imported."""
    spec = importlib.util.spec_from_file_location("_native", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def seconds(module, column):
    """Return how long it takes to hash a column."""
    start = time.perf_counter()
    module.hash_keys(column)
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", metavar="FILE", help="another build of tamis._native")
    parser.add_argument("--rounds", type=int, default=31)
    options = parser.parse_args()
    other = opened(options.against) if options.against else None
    for name, column in columns(1_000_000).items():
        here, there = [], []
        for _ in range(options.rounds):
            here.append(seconds(_native, column))
            if other:
                there.append(seconds(other, column))
        line = f"{name:24} {statistics.median(here) * 1e9 / len(column):6.2f} ns/key"
        if other:
            ratio = statistics.median(h / t for h, t in zip(here, there, strict=True))
            line += f"   {ratio:5.3f} of the other"
        print(line)


if __name__ == "__main__":
    main()
