"""Columns are read where they are: a query allocates its answers and next to nothing else, and a
build the hashes of its keys and what its structure is solved in."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tamis

CLEAR = Path("/proc/self/clear_refs")
KEYS = 2_000_000


def resident(field):
    status = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in status if line.startswith(field)).split()[1])


def peak_of(call):
    """By how much the process grew at most during a call."""
    CLEAR.write_text("5")  # forget the peak so far
    before = resident("VmRSS")
    call()
    return resident("VmHWM") - before


def columns():
    import pyarrow as pa

    numbers = np.arange(KEYS)
    text = pa.array(np.char.add("key-", numbers.astype("U12")))
    yield "numpy int64", numbers
    yield "numpy strided", np.arange(2 * KEYS)[::2]
    yield "numpy bytes", numbers.astype("S8")
    yield "numpy text", numbers.astype("U8")
    yield "arrow int64", pa.array(numbers)
    yield "arrow string", text
    yield "arrow string view", text.cast(pa.string_view())
    yield "arrow chunked", pa.chunked_array([text[: KEYS // 2], text[KEYS // 2 :]])
    yield "arrow dictionary, small", pa.array(numbers % 1000).dictionary_encode()
    yield "arrow dictionary, large", pa.array(numbers // 2).dictionary_encode()


# What a build holds at its peak, in bytes per key: the hashes, 16 bytes each, as threads collected
# them and joined (so twice, if there are several), or once beside what the structure needs.
BUILDS = {
    "Bloom": 36,
    "Cuckoo": 36,
    "Fuse": 40,
    "Quotient": 36,
    "Ribbon": 40,
}


def measure():
    """Print the peak of a query on each column and of each build, in bytes per key."""
    filters = [getattr(tamis, name).build(range(1000), fpr=0.01) for name in BUILDS]
    filters.append(tamis.Sharded.build(range(1000), fpr=0.01, shards=4))
    for name, column in columns():
        for f in filters if name in ("numpy int64", "arrow string") else filters[:1]:
            f.contains(column[:10])
            peak = peak_of(lambda f=f, column=column: f.contains(column))
            print(f"{type(f).__name__}, {name}: {peak / KEYS:.3f}")
    numbers = np.arange(KEYS)
    for name in BUILDS:
        build = getattr(tamis, name).build
        print(f"{name}.build: {peak_of(lambda build=build: build(numbers, fpr=0.01)) / KEYS:.3f}")


@pytest.mark.skipif(not CLEAR.exists(), reason="the peak of a process is read from Linux's /proc")
def test_peaks():
    pytest.importorskip("pyarrow")
    # A fresh process whose allocator takes what is large from the system and gives it back, so
    # that memory which was free before does not hide an allocation.
    returning = {
        "GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=65536:glibc.malloc.trim_threshold=0",
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MALLOC_TRIM_THRESHOLD_": "0",
    }
    run = subprocess.run(
        [sys.executable, __file__],
        env=os.environ | returning,
        capture_output=True,
        text=True,
        check=True,
    )
    peaks = {line.split(": ")[0]: float(line.split(": ")[1]) for line in run.stdout.splitlines()}
    builds = {name: peaks.pop(f"{name}.build") for name in BUILDS}
    assert len(peaks) == 10 + 2 * len(BUILDS)
    assert all(peak < 2 for peak in peaks.values()), run.stdout
    assert all(builds[name] < most for name, most in BUILDS.items()), run.stdout
    # The hashes alone are 16 bytes per key: less would mean that nothing was measured. (The answers
    # of a query are one byte per key, but may lie in memory that NumPy kept.)
    # A large Bloom filter is built without them.
    del builds["Bloom"]
    assert min(builds.values()) > 16, run.stdout


if __name__ == "__main__":
    measure()


LIMITED = """
import resource, sys
import numpy as np
import tamis
keys = np.full(4_000_000, 7)
tamis.Ribbon.build(np.arange(300_000), fpr=0.01)
size = next(line for line in open("/proc/self/status") if line.startswith("VmSize"))
limit = 1024 * int(size.split()[1]) + (int(sys.argv[1]) << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for kind in (tamis.Ribbon, tamis.Fuse):
    try:
        print(len(kind.build(keys, fpr=0.01)))
    except MemoryError as error:
        print(error)
"""


@pytest.mark.skipif(not CLEAR.exists(), reason="memory is limited as on Linux")
@pytest.mark.parametrize("mebibytes", [110, 150, 200, 260, 330])
def test_one_key_millions_of_times_with_little_memory(mebibytes):
    """Either the filter or an error, wherever in the search for repetitions memory ends."""
    command = [sys.executable, "-c", LIMITED, str(mebibytes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(line == "1" or "cannot allocate" in line for line in done.stdout.splitlines())
