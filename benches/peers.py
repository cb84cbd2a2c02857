"""tamis next to alternative packages, in one run, with the targets.

    python benches/peers.py --quick
    python benches/peers.py --keys 1000000 --repeats 9

Every filter has a target rate of 1 %, fuse filters 2⁻⁸. Times are wall-clock nanoseconds per key
and include the loop, if there is one. Lists hold objects created just before the timing, because
Python caches the hash of a str. Lists are also the fastest input of every peer: those that take a
NumPy array convert it to objects first.
"""

from __future__ import annotations

import argparse
import functools
import gc
import hashlib
import importlib
import importlib.metadata
import os
import platform
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from measure import BUDGET, Integers, Keys, Ratio, Strings, Task, Times, print_table, take_turns

import tamis
from tamis import _native

RATE = 0.01
# The rate of pyfusefilter's shortest fingerprints; it has no parameter for the rate.
FUSE_RATE = 2**-8
SEED = 1
# A loop over a sample costs as much per key, and short turns spread the drift evenly.
LOOP = 250_000
# Rates come from more keys, for two digits: 1 % of them are 10,000 ± 100.
SAMPLE = 1_000_000
# Turns of fewer keys than this are cheap, and noisier: they get three times the rounds.
SHORT_TURN = 2_000_000
BATCH_TARGET_KEYS = 1_000_000

COLUMNS = ("build", "in, present", "in, absent", "batch, absent")


def ask(filter_: Any, keys: list[Any]) -> None:
    for key in keys:
        key in filter_  # noqa: B015


def bound(filter_: Any) -> Callable[[Any], bool]:
    return filter_.__contains__


@dataclass(frozen=True)
class Contender:
    """How to build and query a filter; None for what a package does not offer.

    `bits` is None for an exact set.
    """

    name: str
    form: str
    build: Callable[[Any], Any]
    bits: Callable[[Any], int] | None
    ask: Callable[[Any, list[Any]], None] | None = ask
    predicate: Callable[[Any], Callable[[Any], bool]] = bound
    batch: Callable[[Any, Any], Any] | None = None


# ---- the contenders ------------------------------------------------------------------------

UPDATED = ("list", "NumPy", "NumPy U20", "Arrow")


def of_tamis(kind: str, forms: list[str]) -> Iterator[Contender]:
    """Yield `build`, which counts the distinct keys, and `update`, sized by hand as peers are."""

    def updated(keys: Any) -> tamis.Bloom:
        bloom = tamis.Bloom(len(keys), fpr=RATE)
        bloom.update(keys)
        return bloom

    for form in ["list", *forms]:
        yield Contender(
            f"tamis, {form}",
            form,
            lambda keys: tamis.Bloom.build(keys, fpr=RATE),
            lambda bloom: bloom.size_in_bits,
            ask if form == "list" else None,
            batch=lambda bloom, keys: bloom.contains(keys),
        )
        if form in UPDATED:
            yield Contender(
                f"tamis, {form}, update", form, updated, lambda bloom: bloom.size_in_bits, None
            )


def of_abloom(kind: str, forms: list[str]) -> Iterator[Contender]:
    from abloom import BloomFilter

    def builder(serializable: bool) -> Callable[[list[Any]], Any]:
        def build(keys: list[Any]) -> Any:
            bloom = BloomFilter(len(keys), RATE, serializable=serializable)
            bloom.update(keys)
            return bloom

        return build

    yield Contender("abloom", "list", builder(False), lambda bloom: bloom.bit_count)
    yield Contender("abloom, saveable", "list", builder(True), lambda bloom: bloom.bit_count)


def of_rbloom(kind: str, forms: list[str]) -> Iterator[Contender]:
    from rbloom import Bloom

    def stable(key: str) -> int:
        return int.from_bytes(hashlib.sha256(key.encode()).digest()[:16], "big", signed=True)

    def builder(*hash_func: Callable[[str], int]) -> Callable[[list[Any]], Any]:
        def build(keys: list[Any]) -> Any:
            bloom = Bloom(len(keys), RATE, *hash_func)
            bloom.update(keys)
            return bloom

        return build

    yield Contender("rbloom", "list", builder(), lambda bloom: bloom.size_in_bits)
    if kind == "strings":
        yield Contender(
            "rbloom, saveable", "list", builder(stable), lambda bloom: bloom.size_in_bits
        )


def of_fastbloom_rs(kind: str, forms: list[str]) -> Iterator[Contender]:
    """Query by the methods for one type, which are faster than its `in`."""
    from fastbloom_rs import FilterBuilder

    suffix = "int" if kind == "integers" else "str"

    def build(keys: list[Any]) -> Any:
        bloom = FilterBuilder(len(keys), RATE).build_bloom_filter()
        getattr(bloom, f"add_{suffix}_batch")(keys)
        return bloom

    def predicate(bloom: Any) -> Callable[[Any], bool]:
        return getattr(bloom, f"contains_{suffix}")

    def ask_typed(bloom: Any, keys: list[Any]) -> None:
        contains = predicate(bloom)
        for key in keys:
            contains(key)

    yield Contender(
        "fastbloom-rs",
        "list",
        build,
        lambda bloom: len(bloom.get_bytes()) * 8,
        ask_typed,
        predicate,
        lambda bloom, keys: getattr(bloom, f"contains_{suffix}_batch")(keys),
    )


def of_pybloomfilter(kind: str, forms: list[str]) -> Iterator[Contender]:
    from pybloomfilter import BloomFilter

    def build(keys: list[Any]) -> Any:
        bloom = BloomFilter(len(keys), RATE)
        bloom.update(keys)
        return bloom

    yield Contender("pybloomfiltermmap3", "list", build, lambda bloom: bloom.num_bits)


def of_tamis_fuse(kind: str, forms: list[str]) -> Iterator[Contender]:
    for form in ["list", *(form for form in forms if form == "Arrow")]:
        yield Contender(
            f"tamis, {form}, Fuse",
            form,
            lambda keys: tamis.Fuse.build(keys, fpr=FUSE_RATE),
            lambda fuse: fuse.size_in_bits,
            ask if form == "list" else None,
            batch=lambda fuse, keys: fuse.contains(keys),
        )


def of_pyfusefilter(kind: str, forms: list[str]) -> Iterator[Contender]:
    from pyfusefilter import Fuse8

    yield Contender("pyfusefilter", "list", Fuse8, lambda fuse: fuse.size_in_bytes() * 8)


def of_polars(kind: str, forms: list[str]) -> Iterator[Contender]:
    """Yield the exact answer; every call builds its set, which is timed by looking up one row."""
    importlib.import_module("polars")

    def build(keys: Any) -> Any:
        members = keys.implode()
        keys.head(1).is_in(members)
        return members

    if "polars" in forms:
        yield Contender(
            "polars is_in, exact",
            "polars",
            build,
            None,
            None,
            batch=lambda members, keys: keys.is_in(members),
        )


PACKAGES: dict[str, Callable[[str, list[str]], Iterator[Contender]]] = {
    "tamis": lambda kind, forms: chain(of_tamis(kind, forms), of_tamis_fuse(kind, forms)),
    "abloom": of_abloom,
    "rbloom": of_rbloom,
    "fastbloom-rs": of_fastbloom_rs,
    "pybloomfiltermmap3": of_pybloomfilter,
    "pyfusefilter": of_pyfusefilter,
    "polars": of_polars,
}


# ---- measuring -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Results:
    """The measurements for one number and one kind of keys."""

    kind: str
    keys: int
    times: dict[str, Times]
    bits_per_key: dict[str, float]
    rates: dict[str, float]
    denied: dict[str, int]

    def ratio(self, column: str, peer: str, ours: str, our_column: str = "") -> Ratio | None:
        """Return how many times longer the peer took, or None if one of the two is missing."""
        theirs = self.times[column].get(peer)
        own = self.times[our_column or column].get(ours)
        return Ratio.of(theirs, own) if theirs and own else None


def contenders(kind: str, forms: list[str]) -> list[Contender]:
    found = []
    for package in PACKAGES.values():
        try:
            found += package(kind, forms)
        except ImportError:
            continue  # printed once, in the introduction
    return found


def measure(present: Keys, absent: Keys, repeats: int) -> Results:
    kind, count = present.kind, len(present)
    field = contenders(kind, list(present.columns))
    filters: dict[str, Any] = {}

    def turns(tasks: list[Task], keys: Keys, last: dict[str, Any] | None = None) -> Times:
        return take_turns(tasks, repeats * (3 if len(keys) < SHORT_TURN else 1), last)

    def task(keys: Keys, each: Contender, run: Callable[[Any], Any]) -> Task:
        give = keys.fresh if each.form == "list" else lambda: keys.columns[each.form]
        return Task(each.name, give, run)

    def asking(keys: Keys) -> Times:
        tasks = [
            task(keys, each, functools.partial(each.ask, filters[each.name]))
            for each in field
            if each.ask
        ]
        return turns(tasks, keys)

    built = turns([task(present, each, each.build) for each in field], present, filters)
    batches = [
        task(absent, each, functools.partial(each.batch, filters[each.name]))
        for each in field
        if each.batch
    ]
    times = {
        "build": built,
        "in, present": asking(present.head(LOOP)),
        "in, absent": asking(absent.head(LOOP)),
        "batch, absent": turns(batches, absent),
    }
    few_present, few_absent = present.head(SAMPLE), absent.head(SAMPLE)
    bits, rates, denied = {}, {}, {}
    for each in field:
        if each.bits is None:
            continue
        predicate = each.predicate(filters[each.name])
        bits[each.name] = each.bits(filters[each.name]) / count
        rates[each.name] = sum(map(predicate, few_absent.fresh())) / len(few_absent)
        denied[each.name] = len(few_present) - sum(map(predicate, few_present.fresh()))
    return Results(kind, count, times, bits, rates, denied)


# ---- printing ------------------------------------------------------------------------------

REFERENCE = {
    "build": "tamis, Arrow",
    "in, present": "tamis, list",
    "in, absent": "tamis, list",
    "batch, absent": "tamis, Arrow",
}


def tell(results: Results) -> None:
    """Print one table: ns per key, and ×, how many times as long as the line marked ×1.00."""
    rows = []
    for name in results.times["build"]:
        cells = [name]
        for column in COLUMNS:
            times = results.times[column].get(name)
            ratio = results.ratio(column, name, REFERENCE[column])
            cells.append(f"{statistics.median(times):.1f}" if times else "–")
            cells.append(f"×{ratio.median:.2f}" if ratio else "")
        exact = name not in results.rates
        cells.append("exact" if exact else f"{results.bits_per_key[name]:.2f}")
        cells.append("0" if exact else f"{results.rates[name]:.2%}")
        rows.append(cells)
    header = ["", *(word for column in COLUMNS for word in (column, "")), "bits/key", "rate"]
    print(f"\n{results.keys:,} {results.kind}\n")
    print_table(header, rows, left={0})
    for name, count in results.denied.items():
        if count:
            print(f"{name} rejects {count:,} of {min(results.keys, SAMPLE):,} keys that it holds")


Line = tuple[str, Ratio | None, float | None]
"""What is compared, how many times as fast tamis is, and the target."""


def targets(results: Results) -> Iterator[Line]:
    """Yield the comparisons with a target; those for batches are for a million keys."""
    against = "abloom, saveable"
    for column in ("in, present", "in, absent"):
        yield f"{column}: {against}", results.ratio(column, against, "tamis, list"), 1

    # It takes only lists, one key at a time: compare with our lists and our columns.
    against = "pyfusefilter"
    for column in ("build", "in, present", "in, absent"):
        yield f"Fuse, {column}: {against}", results.ratio(column, against, "tamis, list, Fuse"), 20
    ratio = results.ratio("build", against, "tamis, Arrow, Fuse")
    yield f"Fuse, build, Arrow: {against}, list", ratio, 20
    ratio = results.ratio("in, absent", against, "tamis, Arrow, Fuse", "batch, absent")
    yield f"Fuse, batch, Arrow: {against}, in", ratio, 20

    stated = results.keys == BATCH_TARGET_KEYS
    integers = results.kind == "integers"
    for form in ("NumPy", "Arrow") if integers else ("Arrow",):
        for against, times in (
            [("fastbloom-rs", 6), ("polars is_in, exact", 3)]
            if integers
            else [("polars is_in, exact", 5)]
        ):
            ratio = results.ratio("batch, absent", against, f"tamis, {form}")
            yield f"batch, {form}: {against}", ratio, times if stated else None

    built = results.times["build"]
    peers = [name for name in built if not name.startswith(("tamis", "polars"))]
    fastest = min(peers, key=lambda name: statistics.median(built[name]), default="any peer")
    for form in ("NumPy" if integers else "NumPy U20", "Arrow"):
        for way, line in (("build", f"tamis, {form}"), ("update", f"tamis, {form}, update")):
            yield f"{way}, {form}: {fastest}, list", results.ratio("build", fastest, line), 1


def asked_once(results: Results) -> Iterator[Line]:
    """Yield a comparison without a target: a filter built for one batch, against `is_in`."""
    built, asked = results.times["build"], results.times["batch, absent"]
    ours, polars = "tamis, Arrow", "polars is_in, exact"
    if ours in built and polars in asked:
        both = [a + b for a, b in zip(built[ours], asked[ours], strict=True)]
        yield f"build and batch, Arrow: {polars}", Ratio.of(asked[polars], both), None


def verdict(ratio: Ratio | None, at_least: float | None) -> str:
    if ratio is None:
        return "not measured"
    if at_least is None:
        return ""
    if ratio.median >= at_least:
        return "met"
    return f"missed by a factor of {at_least / ratio.median:.2f}"


def tell_targets(measured: list[Results]) -> None:
    rows = []
    for results in measured:
        for what, ratio, at_least in [*targets(results), *asked_once(results)]:
            rows.append(
                (
                    f"{results.keys:,} {results.kind}",
                    what,
                    str(ratio or "–"),
                    f"{at_least}" if at_least else "–",
                    verdict(ratio, at_least),
                )
            )
    print(
        "\nTargets: how many times as fast as the peer; median (minimum–maximum) over the rounds."
        f"\nThose for batches are stated for {BATCH_TARGET_KEYS:,} keys; building is against the"
        " fastest peer.\n"
    )
    print_table(("keys", "what: peer", "ratio", "at least", ""), rows, left={0, 1, 4})


def introduce(repeats: int) -> None:
    """Print what is compared, on which machine, and which packages are missing."""
    if _native.DEBUG_BUILD:
        print("WARNING: tamis was built without optimizations; the figures below are meaningless.")
    versions = []
    for package, offered in PACKAGES.items():
        try:
            list(offered("integers", []))
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except ImportError as missing:
            print(f"skipped: {package} ({missing})")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(f"{', '.join(versions)};\nPython {platform.python_version()}, {cores} cores")
    # tamis' thread counts are those of THREADED_BUILD and THREADED_QUERY in src/python/batch.rs.
    print(
        f"""
Wall-clock ns per key, medians of {repeats} rounds in which all take turns, {3 * repeats} for short
turns; after {BUDGET:.0f} s a contender skips the remaining rounds. × is the time relative to tamis,
the median of the ratios within a round.
Lists are of fresh objects; loops are over up to {LOOP:,} keys and pay {empty_loop():.1f} ns a key.
Threads: tamis {cores} to build from 2¹⁸ keys and to answer batches from 2²²,
polars {polars_threads()}, others 1.
tamis: build counts the distinct keys first; update fills a filter of known capacity, as peers do.
polars: is_in builds its set in every call; build is that, timed by looking up one row.
rbloom, saveable: with the hash of its documentation, SHA-256, which is most of the time.""",
        flush=True,
    )


def empty_loop() -> float:
    def run(keys: list[int]) -> None:
        for _ in keys:
            pass

    keys = Integers.pair(LOOP, SEED)[0]
    return statistics.median(take_turns([Task("loop", keys.fresh, run)], 5)["loop"])


def polars_threads() -> int:
    try:
        return importlib.import_module("polars").thread_pool_size()
    except ImportError:
        return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument(
        "--repeats",
        type=int,
        default=5,
        help="rounds of long measurements; short ones have three times as many",
    )
    parser.add_argument("--quick", action="store_true", help="200,000 keys, 3 rounds")
    arguments = parser.parse_args()
    sizes = [200_000] if arguments.quick else arguments.keys
    repeats = 3 if arguments.quick else arguments.repeats
    if min(sizes) < 1 or repeats < 1:
        parser.error("--keys and --repeats are at least 1")
    gc.disable()  # there are no cycles here, and a collection would slow down one contender only
    introduce(repeats)
    measured = []
    for size in sizes:
        for kind in (Integers, Strings):
            results = measure(*kind.pair(size, SEED), repeats)
            tell(results)
            measured.append(results)
    tell_targets(measured)


if __name__ == "__main__":
    main()
