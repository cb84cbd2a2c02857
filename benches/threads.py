"""Two querying threads against one: queries release the GIL and take no lock.

    python benches/threads.py

Prints the throughput of two threads relative to one, the median of rounds in which both take turns,
with and without a third thread that keeps adding keys.
"""

import argparse
import statistics
import threading
import time

import numpy as np

import tamis


def asked_per_second(f, column, threads, seconds=0.5):
    """Return queries per second of several threads that look up the same column repeatedly."""
    counts, stop = [0] * threads, threading.Event()

    def ask(i):
        while not stop.is_set():
            f.contains(column)
            counts[i] += len(column)

    running = [threading.Thread(target=ask, args=(i,)) for i in range(threads)]
    start = time.perf_counter()
    for thread in running:
        thread.start()
    time.sleep(seconds)
    stop.set()
    for thread in running:
        thread.join()
    return sum(counts) / (time.perf_counter() - start)


def ratio(f, column, rounds):
    """Return the throughput of two threads relative to one."""
    return statistics.median(
        asked_per_second(f, column, 2) / asked_per_second(f, column, 1) for _ in range(rounds)
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    keys = 1_000_000
    column = np.arange(keys, keys + 200_000)
    print("two threads / one, median over rounds (target: at least 1.6)")
    for name, f in (
        ("Bloom, blocked", tamis.Bloom(2 * keys, fpr=0.01)),
        ("Bloom, standard", tamis.Bloom(2 * keys, fpr=0.01, layout="standard")),
        ("Quotient", tamis.Quotient(2 * keys, fpr=0.01)),
        ("Cuckoo", tamis.Cuckoo(2 * keys, fpr=0.01)),
    ):
        f.update(np.arange(keys))
        quiet = ratio(f, column, options.rounds)
        done = threading.Event()

        def add(f=f, done=done):
            key = 10 * keys
            while not done.is_set():
                f.add(key)
                key += 1
                time.sleep(0.0005)

        writer = threading.Thread(target=add)
        writer.start()
        busy = ratio(f, column, options.rounds)
        done.set()
        writer.join()
        print(f"{name:<18} {quiet:.2f}   while one adds: {busy:.2f}")


if __name__ == "__main__":
    main()
