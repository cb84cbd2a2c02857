"""The processes that `test_crashes.py` kills: forked from one that has tamis loaded.

Reads a line per child, ``load|verify store folder filter seed``, forks, and writes ``pid``. A child
prints ``half`` in the middle of a write, where it waits to be killed, ``on`` when it continues, and
its results as JSON.
"""

import json
import os
import random
import signal
import sys
import time

from stand_in import tiny

import tamis
from tamis import stores

FILTERS = {
    "quotient": lambda: tamis.Quotient(capacity=1000, fpr=2**-4),
    "cuckoo": lambda: tamis.Cuckoo(capacity=2000, fpr=2**-4),
    "telescoping": lambda: tamis.Telescoping(capacity=50, fpr=2**-4, seed=random.getrandbits(64)),
    "bloom": lambda: tamis.Bloom(capacity=1000, fpr=0.05),
    "stack": lambda: tiny("quotient", capacity=3),
}


def say(word):
    os.write(1, f"{word}\n".encode())


def opened(kind, folder, filter):
    return tamis.Guard(
        getattr(stores, kind)(os.path.join(folder, "data")),
        FILTERS[filter](),
        snapshot=os.path.join(folder, "filter"),
        lease=0.01,
    )


def half_way(then):
    """Between the filter's write and the commit, or the commit and the filter's removal."""

    def pause(*arguments, **options):
        if random.random() < 0.2:
            say("half")
            time.sleep(0.1)
            say("on")
        return then(*arguments, **options)

    return pause


def load(kind, folder, filter, seed):
    """Put, delete, query and save until killed."""
    random.seed(seed)
    guard = opened(kind, folder, filter)
    guard.store.put_many = half_way(guard.store.put_many)
    guard.driver.replica.change = half_way(guard.driver.replica.change)
    guard.driver.replica.remove_own = half_way(guard.driver.replica.remove_own)
    while True:
        keys = [random.randrange(300) for _ in range(random.choice([1, 1, 5]))]
        action = random.random()
        if action < 0.5:
            guard.put_many((key, seed) for key in keys)
        elif action < 0.8:
            guard.delete_many(keys)
        elif action < 0.9:
            guard.save()
        else:
            guard.get_many([*keys, *range(1000, 1020)])


def verify(kind, folder, filter, seed):
    """Reopen after a crash, and check every stored key against the filter."""
    random.seed(f"{seed}, after the crash")
    with opened(kind, folder, filter) as guard:
        keys = list(guard)
        found = {
            "stored": len(keys),
            "missing": guard.get_many(keys).count(None),
            "denied": [key for key in keys if key not in guard.filter],
            "trusted": guard.stats.trusted,
        }
    say(json.dumps(found))


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        action, *arguments = line.split()
        if child := os.fork():
            say(child)
        else:
            {"load": load, "verify": verify}[action](*arguments)
            os._exit(0)
