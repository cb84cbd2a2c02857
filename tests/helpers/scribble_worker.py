"""Maps filters, writes over their files in place, and uses them; `test_format.py` runs it.

A file must not be written to while it is mapped, and what a filter answers then may be wrong. But
it must answer, or raise an exception that callers handle: no signal, no panic, no endless loop.
"""

import os
import random
import signal
import sys
import warnings
from pathlib import Path

import numpy as np
from contract import SPECIMENS

import tamis

KEYS = np.arange(3000)
QUERIES = np.arange(6000)


def uses(f):
    """Yield what callers do with a filter, as functions."""
    yield lambda: f.contains(QUERIES)
    yield lambda: [key in f for key in QUERIES[:300].tolist()]
    yield lambda: f.contains(QUERIES.tolist())
    yield lambda: (f.expected_fpr, f.fpr_bound, len(f), f.bits_per_key)
    yield f.to_bytes
    yield f.copy
    yield lambda: f | f
    if isinstance(f, tamis.Quotient):
        yield lambda: [f.count(key) for key in QUERIES[:300].tolist()]
        yield lambda: list(f.fingerprints())
        yield f.grow
    if f.inserts:
        yield lambda: [f.add(key) for key in range(10**6, 10**6 + 20)]
        yield lambda: f.update(np.arange(10**7, 10**7 + 300))
    if f.deletes:
        yield lambda: [f.remove(key) for key in range(100)]
    yield lambda: f.contains(QUERIES)


def main(folder):
    warnings.simplefilter("ignore")
    for specimen in SPECIMENS:
        for trial, count in enumerate((1, 3, 30, 300, 3000)):
            print(specimen, count, flush=True)
            path, chance = Path(folder) / "f", random.Random(trial)
            specimen.build(KEYS, fpr=2**-8).save(path)
            f, size = tamis.load(path, mmap=True), path.stat().st_size
            with path.open("r+b") as file:
                for _ in range(count):
                    file.seek(chance.randrange(64, size))
                    file.write(bytes([chance.choice([0, 255, chance.randrange(256)])]))
            signal.alarm(60)
            for use in uses(f):
                try:
                    use()
                except Exception:
                    continue
            signal.alarm(0)
    print("good")


if __name__ == "__main__":
    main(sys.argv[1])
    os._exit(0)
