"""Filters of the runs of an LSM-tree: wasted reads per query of an absent key, and lookups/s.

Four runs of 10³ to 10⁶ keys; queries are for absent keys, by Zipf's law over 10⁶ of them; the
workload is made of as many queries. First means over seeds: Bloom filters, Monkey's (Dayan,
Athanassoulis, Idreos 2017), a stack of Bloom filters per run, an exact stack per run, and
`tamis.Collection` with kind "stacked", which splits one memory. Then sorted runs in files, whose
reads are counted: wasted reads and lookups per second by memory and exponent (experiments 1 and 2
of Deeds, Hentschel, Idreos 2020, 6.2), and the same runs in RocksDB with its own Bloom filters.
rocksdict does not expose RocksDB's ribbon filters. No data are needed.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from experiments.curves import curves, panels
from experiments.evidence import Evidence, Verdict, experiment

import tamis

ABSENT = 2**40
BLOCK = 256  # records of a block of 4 kB
TARGETS = {10: 0.00025, 6: 0.0040}
"""By bits per key: the wasted reads of the split."""
QUICK_TARGETS = {10: 0.0003, 6: 0.0050}
"""The same for a tenth of the keys, of which a smaller run has fewer than a filter needs."""
LEAST = 0.1  # bits per key, with fewer of which a Bloom filter is not worth its lookup
NAMES = ("Bloom", "Monkey", "stacked Bloom", "exact", "split")
"""Kinds of filters: one per run with equal bits per key, except Monkey's and the split's."""


def zipf(universe, exponent):
    shares = np.arange(1, universe + 1) ** -float(exponent)
    return shares / shares.sum()


def keys_of(sizes):
    """Return distinct keys of each run, the largest and oldest first, spread over one range."""
    total = sum(sizes)
    keys = np.random.default_rng(7).permutation(total).astype(np.uint64) * np.uint64(3)
    return np.split(keys, np.cumsum(sizes)[:-1])


def monkey_bits(sizes, budget):
    """Bits of Bloom filters whose rates are in proportion to the keys of their runs."""
    sizes = np.array(sizes, float)
    low, high = 1e-30, 1.0

    def bits(factor):
        return -sizes * np.log(np.minimum(factor * sizes, 1.0)) / math.log(2) ** 2

    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if bits(middle).sum() > budget else (low, middle)
    return bits(high)


def filters_of(name, runs, workload, bits, seed=0):
    """Return a filter per run, with this many bits per key in total; None is no filter."""
    sizes = [len(keys) for keys in runs]
    if name == "split":
        named = {str(i): keys for i, keys in enumerate(runs)}
        budget = bits * sum(sizes) // 8
        c = tamis.Collection.build(
            named, budget=budget, workload=workload, kind="stacked", seed=seed
        )
        assert c.size_in_bytes <= budget
        return c.filters
    if name in ("Bloom", "Monkey"):
        each = [float(bits)] * len(runs)
        if name == "Monkey":
            each = (monkey_bits(sizes, bits * sum(sizes)) / sizes).tolist()
        return [
            tamis.Bloom.build(keys, bits_per_key=own, layout="standard", seed=seed)
            if own > LEAST
            else None
            for keys, own in zip(runs, each, strict=True)
        ]
    how = {"layer": "ribbon", "last": "exact"}
    if name == "stacked Bloom":
        how = {"layer": "bloom", "last": "alternating"}
    return [
        tamis.Stacked.build(keys, workload, bits_per_key=bits, seed=seed, **how) for keys in runs
    ]


def wasted(filters, absent, shares):
    """Reads per query: the share of the queries that each filter accepts."""
    return sum(1.0 if f is None else float(shares[f.contains(absent)].sum()) for f in filters)


def the_row(sizes, universe, seeds, budgets):
    """Return means over seeds of the wasted reads per query, by bits per key and name."""
    runs, shares = keys_of(sizes), zipf(universe, 1)
    absent, found = ABSENT + np.arange(universe), {}
    for seed in range(seeds):
        asked = np.random.default_rng(seed).choice(universe, universe, p=shares)
        workload = tamis.Workload.from_queries(absent[asked])
        for bits in budgets:
            for name in NAMES:
                filters = filters_of(name, runs, workload, bits, seed)
                found.setdefault((bits, name), []).append(wasted(filters, absent, shares))
    return {cell: float(np.mean(values)) for cell, values in found.items()}


class Tree:
    """Sorted runs in files, the newest last: blocks of 4 kB, whose first keys are in memory."""

    def __init__(self, folder, runs):
        self.reads, self.files, self.fences = 0, [], []
        for i, keys in enumerate(runs):
            records = np.empty((len(keys), 2), np.uint64)
            records[:, 0] = np.sort(keys)
            records[:, 1] = records[:, 0] + np.uint64(1)
            path = Path(folder) / f"{i}.run"
            records.tofile(path)
            self.files.append(os.open(path, os.O_RDONLY))
            self.fences.append(records[::BLOCK, 0].copy())

    def get(self, key, candidates):
        """Return the value of a key in the first of these runs that has it, or None."""
        for run in candidates:
            block = int(np.searchsorted(self.fences[run], key, side="right")) - 1
            if block < 0:
                continue
            self.reads += 1
            content = os.pread(self.files[run], 16 * BLOCK, 16 * BLOCK * block)
            records = np.frombuffer(content, np.uint64).reshape(-1, 2)
            at = int(np.searchsorted(records[:, 0], key))
            if at < len(records) and records[at, 0] == key:
                return int(records[at, 1])
        return None

    def close(self):
        for file in self.files:
            os.close(file)


def lookups(tree, filters, keys):
    """Look up keys one by one; return reads per lookup, and lookups per second of processor."""
    newest = list(reversed(list(enumerate(filters))))
    tree.reads, begin = 0, time.process_time()
    for key in keys:
        tree.get(key, [run for run, f in newest if f is None or key in f])
    return tree.reads / len(keys), len(keys) / (time.process_time() - begin)


def absent_between(sizes, universe):
    """Return absent keys between the keys, so that every block that is asked for exists."""
    absent = np.random.default_rng(8).permutation(sum(sizes))[:universe].astype(np.uint64)
    return absent * np.uint64(3) + np.uint64(1)


def in_files(folder, sizes, universe, queries, rows):
    """Yield exponent, bits, name, reads and lookups per second of runs in files."""
    runs, absent = keys_of(sizes), absent_between(sizes, universe)
    tree = Tree(folder, runs)
    some = [int(key) for run in runs for key in run[:100]]
    for exponent, bits in rows:
        shares = zipf(len(absent), exponent)
        rng = np.random.default_rng(10)
        workload = tamis.Workload.from_queries(rng.choice(absent, len(absent), p=shares))
        asked = rng.choice(absent, queries, p=shares).tolist()
        for name in NAMES:
            filters = filters_of(name, runs, workload, bits)
            found = [
                tree.get(key, [run for run, f in enumerate(filters) if f is None or key in f])
                for key in some
            ]
            assert found == [key + 1 for key in some]
            yield exponent, bits, name, *lookups(tree, filters, asked)
    tree.close()


def in_rocksdb(folder, sizes, universe, queries, rows):
    """Yield the same of the runs as files of level 0 of RocksDB, with its own Bloom filters."""
    try:
        import rocksdict
    except ImportError:
        return
    runs, absent = keys_of(sizes), absent_between(sizes, universe)
    for exponent, bits in rows:
        options = rocksdict.Options(raw_mode=True)
        options.set_disable_auto_compactions(True)
        options.set_write_buffer_size(1 << 30)
        options.enable_statistics()
        table = rocksdict.BlockBasedOptions()
        table.set_bloom_filter(bits, False)
        options.set_block_based_table_factory(table)
        path = str(Path(folder) / f"rocksdb {exponent} {bits}")
        db = rocksdict.Rdict(path, options)
        for keys in runs:
            batch = rocksdict.WriteBatch(raw_mode=True)
            for key in keys.tolist():
                batch.put(key.to_bytes(8, "big"), (key + 1).to_bytes(8, "big"))
            db.write(batch)
            db.flush()
        shares = zipf(len(absent), exponent)
        asked = np.random.default_rng(10).choice(absent, queries, p=shares)
        asked = [int(key).to_bytes(8, "big") for key in asked]
        before, begin = false_positives(options), time.process_time()
        for key in asked:
            db.get(key)
        seconds = time.process_time() - begin
        reads = (false_positives(options) - before) / queries
        yield exponent, bits, "RocksDB", reads, queries / seconds
        db.close()
        rocksdict.Rdict.destroy(path)


def false_positives(options):
    """Files that RocksDB read since a filter accepted a key that was not in them."""
    text = options.get_statistics()
    counts = dict(re.findall(r"^(rocksdb\.bloom\.filter\.full\S*) COUNT : (\d+)", text, re.M))
    accepted = int(counts["rocksdb.bloom.filter.full.positive"])
    return accepted - int(counts["rocksdb.bloom.filter.full.true.positive"])


@experiment("collections/runs", title="Filters of the runs of an LSM-tree")
def runs(quick: bool) -> Evidence:
    """Wasted reads per query: means over seeds, and counted in files and in RocksDB."""
    sizes = [10**5, 10**4, 10**3, 10**2] if quick else [10**6, 10**5, 10**4, 10**3]
    universe, seeds = (10**5, 3) if quick else (10**6, 20)
    targets = QUICK_TARGETS if quick else TARGETS
    means = the_row(sizes, universe, seeds, targets)
    rows = [
        row(f"mean of {seeds} seeds", 1, bits, name, reads, "")
        for (bits, name), reads in means.items()
    ]
    cells = [(1, bits) for bits in ((6, 10) if quick else (4, 6, 8, 10, 12))]
    cells += [(exponent, 10) for exponent in ((0.5,) if quick else (0.5, 0.75, 1.25))]
    queries = 10_000 if quick else 50_000
    with tempfile.TemporaryDirectory(prefix="tamis-") as folder:
        rows += [row("files", *each) for each in in_files(folder, sizes, universe, queries, cells)]
        found = in_rocksdb(folder, sizes, universe, queries, [(1, 6), (1, 10)])
        rows += [row("RocksDB", *each) for each in found]
    met = all(means[bits, "split"] <= target for bits, target in targets.items())

    def told(*names: str) -> str:
        return "; ".join(
            f"{name} {' / '.join(f'{means[bits, name]:.3g}' for bits in targets)}" for name in names
        )

    def draw(i: int, axes: Any) -> None:
        x = ("bits per key", "exponent")[i]
        own = [
            r
            for r in rows
            if r["where"] == "files" and (r["exponent"], r["bits per key"])[i] in ((1,), (10,))[i]
        ]
        labels = (x, "wasted reads per lookup")
        shown = [{**r, "wasted reads": max(r["wasted reads"], 1e-5)} for r in own]
        curves(
            axes, shown, x=x, y="wasted reads", by="filters", labels=labels, logy=True, order=NAMES
        )

    return Evidence(
        rows,
        [
            Verdict(
                "Stacks of Bloom filters per run waste fewer reads than Bloom filters and Monkey's "
                "(the earlier stacked paper, 6.2)",
                "fewer",
                f"at 10 / 6 bits per key: {told('Bloom', 'Monkey', 'stacked Bloom')}",
                told("exact", "split"),
                "goes further" if met else "differs",
                f"Exact stacks that share one memory; runs of {sizes[-1]:,} to {sizes[0]:,} "
                f"keys, mean of {seeds} seeds; targets {' / '.join(map(str, targets.values()))}. "
                "At 6 bits Monkey's allocation beats stacks of equal bits per key.",
            )
        ],
        panels(2, draw, columns=2),
    )


def row(where, exponent, bits, name, reads, speed):
    return {
        "where": where,
        "exponent": exponent,
        "bits per key": bits,
        "filters": name,
        "wasted reads": reads,
        "lookups per second": speed if speed == "" else round(speed),
    }
