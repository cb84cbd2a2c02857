"""Numbers that are none, too large, or of another type, in every argument that takes a number.

A call works, or raises `ValueError` or `TypeError` that names the argument and the value.
"""

import contextlib
import functools
import inspect
import re
import signal
import tempfile
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

import tamis
import tamis.text
from tamis import stores, traces
from tamis.learned import train

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from tamis.parquet import SkippingIndex  # noqa: E402

VALUES = [
    float("nan"),
    float("inf"),
    float("-inf"),
    Decimal("NaN"),
    Decimal("sNaN"),
    Decimal("Infinity"),
    Decimal("1E+400"),
    Decimal("0.5"),
    Fraction(1, 3),
    Fraction(7),
    -1,
    0,
    10**400,
    -(10**400),
    10**9999,
    2**64,
    True,
    "x",
    "",
    b"x",
    None,
    [],
    1j,
    np.int64(3),
    np.uint8(2),
    np.bool_(True),
    np.float32(0.25),
    np.float64("nan"),
    np.float16("inf"),
]

KEYS = list(range(50))
WORKLOAD = tamis.Workload.from_counts(range(1000, 1500), range(501, 1, -1), unseen=0.1)
RATE = {"fpr": 0.1}
BUDGET = {"bits_per_key": 12}
CHEAP = {**BUDGET, "layer": "bloom", "rates": "equal"}
SCORES = (np.linspace(0.2, 1, 60), np.linspace(0, 0.8, 60))
ROWS = np.arange(200.0).reshape(100, 2)


class Scores:
    """A classifier that returns the first feature."""

    def predict_proba(self, rows):
        first = np.asarray(rows, dtype=float)[:, 0] / 200
        return np.stack([1 - first, first], axis=1)


def filled(cls, **arguments):
    return cls.build(KEYS, **arguments)


def bloom(**arguments):
    return filled(tamis.Bloom, **RATE, **arguments)


def collection():
    return tamis.Collection.build({"a": [1, 2], "b": [3]}, fpr=0.1)


def search_index():
    return tamis.text.SearchIndex.build({"a": "one two", "b": "three"}, fpr=0.1)


def guard(**arguments):
    arguments = {"filter": tamis.Bloom(10, fpr=0.1)} | arguments
    tamis.Guard(stores.Memory(), **arguments).close()


def served(**arguments):
    with tamis.Guard(stores.Memory(), tamis.Bloom(10, fpr=0.1)) as g:
        g.serve(**arguments).close()


def guard_of_a_budget(**arguments):
    with contextlib.closing(stores.SQLite(":memory:")) as store:
        tamis.Guard(store, **arguments).close()


def sqlite(**arguments):
    stores.SQLite(":memory:", **arguments).close()


def unreachable(make):
    """A store that checks its arguments, and then finds no server."""

    def call(**arguments):
        with contextlib.suppress(tamis.StoreError):
            make(**arguments)

    return call


@functools.cache
def lake():
    folder = tempfile.TemporaryDirectory()
    pq.write_table(pa.table({"n": range(50)}), f"{folder.name}/a.parquet")
    return folder


def index(**arguments):
    return SkippingIndex.build(f"{lake().name}/a.parquet", columns="n", **arguments)


def opened_index(**arguments):
    path = f"{lake().name}/index"
    index(path=path)
    SkippingIndex.open(path, **arguments)


def opened_collection(**arguments):
    collection().save(f"{lake().name}/collection")
    tamis.Collection.open(f"{lake().name}/collection", **arguments)


def opened_search_index(**arguments):
    search_index().save(f"{lake().name}/texts")
    tamis.text.SearchIndex.open(f"{lake().name}/texts", **arguments)


def learned(**arguments):
    options = {"nonmembers": ROWS[50:], "features": ROWS[:50], "model": Scores()} | arguments
    tamis.LearnedBloom.build(KEYS, **options)


def stable_learned(**arguments):
    tamis.StableLearned.build(
        KEYS, nonmembers=ROWS[50:], features=ROWS[:50], model=Scores(), **arguments
    )


def trained(**arguments):
    train([f"key {i}" for i in range(50)], [f"{i} other" for i in range(50)], **arguments)


def advise(**arguments):
    tamis.advise(**{"keys": 1000, "workload": WORKLOAD} | arguments)


def plan_collection(**arguments):
    tamis.plan_collection([10, 20, 30], **arguments)


CALLS = {
    # name: (function, arguments that work, arguments to replace)
    "Bloom": (tamis.Bloom, {"capacity": 50, **RATE}, "capacity fpr seed"),
    "Bloom of bits": (tamis.Bloom, {"capacity": 50, **BUDGET}, "bits_per_key"),
    "Bloom.truncate": (
        lambda **a: bloom(layout="segmented").truncate(**a), {"bits": 128}, "bits",
    ),
    "Bloom.layout": (tamis.Bloom, {"capacity": 50, **RATE, "layout": "blocked"}, "layout"),
    "Cuckoo": (tamis.Cuckoo, {"capacity": 50, **RATE}, "capacity fpr seed"),
    "Cuckoo of bits": (tamis.Cuckoo, {"capacity": 50, "fingerprint_bits": 8}, "fingerprint_bits"),
    "Cuckoo.truncate": (
        lambda **a: filled(tamis.Cuckoo, **RATE).truncate(**a),
        {"fingerprint_bits": 3},
        "fingerprint_bits",
    ),
    "Quotient": (tamis.Quotient, {"capacity": 50, **RATE}, "capacity fpr seed"),
    "Quotient.truncate": (
        lambda **a: filled(tamis.Quotient, **RATE).truncate(**a),
        {"remainder_bits": 2},
        "remainder_bits",
    ),
    "Quotient.fingerprints": (
        lambda **a: list(filled(tamis.Quotient, **RATE).fingerprints(**a)),
        {"start": 0, "stop": 5},
        "start stop",
    ),
    "Ribbon.build": (
        lambda **a: tamis.Ribbon.build(KEYS, **a), {**BUDGET, "layout": "interleaved"},
        "bits_per_key seed layout",
    ),
    "Ribbon.truncate": (
        lambda **a: filled(tamis.Ribbon, fpr=0.01, layout="columns").truncate(**a),
        {"columns": 3},
        "columns",
    ),
    "Fuse.build": (lambda **a: tamis.Fuse.build(KEYS, **a), RATE, "fpr arity seed"),
    "AdaptiveCuckoo": (
        tamis.AdaptiveCuckoo, {"capacity": 50, **RATE}, "capacity fpr selector_bits seed",
    ),
    "Telescoping": (tamis.Telescoping, {"capacity": 50, **RATE}, "capacity fpr seed"),
    "Extending": (tamis.Extending, {"capacity": 50, **BUDGET}, "capacity bits_per_key seed"),
    "AdaptiveStacked": (
        tamis.AdaptiveStacked,
        {"capacity": 50, "workload": WORKLOAD, **BUDGET, "layer": "bloom"},
        "capacity bits_per_key",
    ),
    "AdaptiveStacked of a lifetime": (
        tamis.AdaptiveStacked,
        {"capacity": 50, "workload": WORKLOAD, **BUDGET, "sizing": "lifetime", "lifetime": 1000},
        "lifetime",
    ),
    "AdaptiveStacked.build": (
        lambda **a: tamis.AdaptiveStacked.build(KEYS, WORKLOAD, **a),
        {**BUDGET, "capacity": 60},
        "capacity fpr",
    ),
    "Sharded.build": (
        lambda **a: tamis.Sharded.build(KEYS, **a),
        {**RATE, "shards": 2},
        "fpr shards threads seed",
    ),
    "Sharded.from_batches": (
        lambda **a: tamis.Sharded.from_batches([KEYS], **a),
        {**RATE, "shards": 2},
        "fpr shards threads seed",
    ),
    "StableBloom": (
        tamis.StableBloom, {"gap": 50, "fpr": 0.1, "bits": 1000}, "gap fpr bits seed",
    ),
    "StableBloom of a rate": (tamis.StableBloom, {"gap": 50, "fpr": 0.1, "fnr": 0.1}, "fnr"),
    "StableBloom.build": (
        lambda **a: tamis.StableBloom.build(KEYS, **a), {"fpr": 0.1, "bits": 1000}, "gap",
    ),
    "StableBloom.expected_fnr": (
        lambda **a: tamis.StableBloom(50, fpr=0.1, fnr=0.1).expected_fnr(**a), {"gap": 5}, "gap",
    ),
    "Windowed": (tamis.Windowed, {"window": 50, **RATE}, "window seconds fpr seed"),
    "Windowed.build": (
        lambda **a: tamis.Windowed.build(KEYS, **a), {**BUDGET, "window": 50},
        "window bits_per_key",
    ),
    "Windowed.seen": (
        lambda **a: tamis.Windowed(50, seconds=10, fpr=0.1).seen(1, **a), {"at": 5.0}, "at",
    ),
    "StaticFunction.build": (
        lambda **a: tamis.StaticFunction.build(KEYS, [1] * 50, **a), {"bits": 3}, "bits seed",
    ),
    "StaticFunction.values": (
        lambda values: tamis.StaticFunction.build([1], [values]), {"values": 3}, "values",
    ),
    "Stacked.build": (
        lambda **a: tamis.Stacked.build(KEYS, **{"workload": WORKLOAD} | a),
        CHEAP,
        "bits_per_key fpr capacity seed workload",
    ),
    "LearnedBloom.build": (learned, BUDGET, "bits_per_key fpr regions seed filter form"),
    "train": (trained, {"kind": "logistic", "buckets": 64}, "buckets penalty"),
    "train, a table": (
        lambda **a: train(ROWS[:20], ROWS[80:], kind="logistic", **a), {"levels": 4}, "levels seed",
    ),
    "train, text": (
        lambda ngrams: trained(kind="logistic", buckets=64, ngrams=(1, ngrams)), {"ngrams": 2},
        "ngrams",
    ),
    "train, trees": (
        trained, {"kind": "gbt", "buckets": 64, "trees": 2, "leaves": 3}, "trees leaves",
    ),
    "StableLearned.build": (
        stable_learned, {"bits": 2000, "fpr": 0.1, "gap": 50, "groups": 2}, "bits groups",
    ),
    "StableLearned.plan": (
        lambda **a: tamis.StableLearned.plan(*SCORES, **a),
        {"bits": 2000, "fpr": 0.1, "gap": 50, "groups": 2},
        "bits fpr gap groups model_bits method",
    ),
    "plan_stable": (
        lambda **a: tamis.plan_stable([0.5, 0.5], [0.1, 0.9], **a),
        {"bits": 2000, "fpr": 0.1, "gap": 50},
        "bits fpr gap members model_bits method",
    ),
    "plan": (
        tamis.plan,
        {"n_keys": 1000, "workload": WORKLOAD, **CHEAP},
        "n_keys bits_per_key fpr max_fpr_bound max_checks penalties layer last rates workload",
    ),
    "plan, costs": (
        tamis.plan,
        {"n_keys": 1000, "workload": WORKLOAD, **CHEAP, "miss_cost": 1.0, "check_cost": 0.1},
        "miss_cost check_cost",
    ),
    "plan, penalties": (
        lambda penalties: tamis.plan(1000, WORKLOAD, **CHEAP, penalties=[penalties, 0.0, 0.0]),
        {"penalties": 1.0},
        "penalties",
    ),
    "Plan.rate_at": (lambda **a: tamis.plan(100, fpr=0.1).rate_at(**a), {"psi": 0.5}, "psi"),
    "Plan.build": (
        lambda **a: tamis.plan(50, fpr=0.1).build(KEYS, **a), {"seed": 1}, "seed capacity",
    ),
    "advise": (
        advise,
        BUDGET,
        "keys bits_per_key miss_cost denial_cost check_cost present expected_queries turnover "
        "workload",
    ),
    "advise, budget": (advise, {"budget": 2000}, "budget"),
    "Advice.measure": (
        lambda **a: tamis.advise(KEYS, **BUDGET).measure(KEYS, [100, 101], **a),
        {"seeds": 1},
        "seeds",
    ),
    "plan_collection": (plan_collection, {"budget": 1000}, "budget fpr kind method"),
    "plan_collection, target": (plan_collection, {"target": 0.1}, "target"),
    "plan_collection, keys": (
        lambda keys: tamis.plan_collection([10, keys], budget=1000), {"keys": 10}, "keys",
    ),
    "plan_collection, utility": (
        lambda utility: tamis.plan_collection([10, 3], [1, utility], budget=1000),
        {"utility": 10},
        "utility",
    ),
    "plan_collection, bits": (
        lambda bits, hashes: tamis.plan_collection(
            [10, 3], budget=20, kind="segmented", bits=[bits, 8], hashes=[hashes, 2]
        ),
        {"bits": 80, "hashes": 2},
        "hashes",
    ),
    "Collection.build": (
        lambda **a: tamis.Collection.build({"a": [1, 2], "b": [3]}, **a),
        {"fpr": 0.1},
        "budget fpr parts seed kind",
    ),
    "Collection.build, auto": (
        lambda **a: tamis.Collection.build({"a": [1, 2], "b": [3]}, budget=1000, **a),
        {"miss_cost": 1e-3},
        "miss_cost",
    ),
    "Collection.allocate": (
        lambda **a: collection().allocate(**a), {"budget": 1000}, "budget method",
    ),
    "Collection.append": (
        lambda **a: collection().append("c", [5], **a), {"fpr": 0.1}, "utility fpr kind",
    ),
    "Collection.extend": (
        lambda **a: collection().extend({"c": [5]}, **a), {"fpr": 0.1}, "fpr kind",
    ),
    "Collection.candidates": (lambda **a: collection().candidates(1, **a), {}, "limit part"),
    "Collection.candidates_many": (
        lambda **a: collection().candidates_many([1], **a), {}, "limit part",
    ),
    "Collection.record": (lambda **a: collection().record(["a"], **a), {"weight": 1}, "weight"),
    "SearchIndex.build": (
        lambda **a: tamis.text.SearchIndex.build({"a": "one"}, **a), {"fpr": 0.1},
        "budget fpr seed",
    ),
    "SearchIndex.allocate": (
        lambda **a: search_index().allocate(**a), {"budget": 1000}, "budget",
    ),
    "SearchIndex.append": (
        lambda **a: search_index().append("c", "four", **a), {"fpr": 0.1}, "utility fpr",
    ),
    "SearchIndex.extend": (
        lambda **a: search_index().extend({"c": "four"}, **a), {"fpr": 0.1}, "fpr",
    ),
    "SearchIndex.search": (lambda **a: search_index().search("one", **a), {"k": 3}, "k"),
    "Guard": (
        guard, {"lease": 5.0}, "lease max_staleness adaptations_per_second filter on_failure",
    ),
    "Guard.serve": (served, {"port": 0}, "port"),
    "AsyncGuard": (lambda **a: tamis.AsyncGuard(stores.Memory(), **a), {"threads": 2}, "threads"),
    "Guard of a budget": (guard_of_a_budget, BUDGET, "bits_per_key workload"),
    "SQLite": (sqlite, {"timeout": 5.0}, "timeout"),
    "Redis": (
        unreachable(lambda **a: stores.Redis("redis://127.0.0.1:1", **a)),
        {"timeout": 5.0},
        "timeout grace",
    ),
    "Postgres": (
        unreachable(lambda **a: stores.Postgres("host=127.0.0.1 port=1", **a)),
        {"timeout": 5.0},
        "timeout connections",
    ),
    "SkippingIndex.build": (index, {}, "memory fpr recheck seed threads"),
    "SkippingIndex.open": (opened_index, {}, "memory recheck threads cache"),
    "SkippingIndex.allocate": (lambda **a: index().allocate(**a), {"memory": 1000}, "memory"),
    "SkippingIndex.scan": (lambda **a: index().scan({"n": 1}, **a), {"limit": 5}, "limit"),
    "SkippingIndex.record": (
        lambda **a: (found := index()).record(found.row_groups({"n": 1}), **a), {"rows": 5}, "rows",
    ),
    "Collection.open": (opened_collection, {}, "budget parts cache"),
    "SearchIndex.open": (opened_search_index, {}, "budget cache"),
    "Hashes": (stores.Hashes, {"keys": [1], "seed": 1}, "seed"),
    "dedup": (
        lambda **a: list(tamis.dedup([1, 2, 1], **a)), {"window": 50}, "window fpr",
    ),
    "dedup, time": (
        lambda **a: list(tamis.dedup([(1, 0.0)], key=lambda r: r[0], at=lambda r: r[1], **a)),
        {"window": 50, "seconds": 10},
        "seconds",
    ),
    "dedup, gap": (
        lambda **a: list(tamis.dedup([1, 2, 1], **a)), {"gap": 50, "bits": 2000}, "gap bits",
    ),
    "hash_keys": (lambda **a: tamis.hash_keys([1], **a), {"seed": 5}, "seed"),
    "split": (lambda **a: tamis.split(KEYS, **a), {"shards": 2}, "shards seed"),
    "Workload.zipf": (
        tamis.Workload.zipf, {"exponent": 1.0, "universe": 100, "sample": 2},
        "exponent universe sample",
    ),
    "Workload.from_shape": (
        lambda **a: tamis.Workload.from_shape([3, 2], **a), {"unseen": 0.1}, "unseen",
    ),
    "Workload.from_shape, frequencies": (
        lambda frequencies: tamis.Workload.from_shape([frequencies, 2]), {"frequencies": 3},
        "frequencies",
    ),
    "Workload.from_counts": (
        lambda unseen=0.0, counts=3, costs=1.0: tamis.Workload.from_counts(
            ["a", "b"], [counts, 2], costs=[costs, 1.0], unseen=unseen
        ),
        {},
        "unseen counts costs",
    ),
    "Workload.from_batches": (
        lambda **a: tamis.Workload.from_batches([[1, 2]], **a),
        {"max_distinct": 1000},
        "max_distinct",
    ),
    "Workload.head": (
        lambda **a: tamis.Workload.from_counts([1, 2], [2, 1]).head(**a), {"n": 1}, "n",
    ),
    "Workload.psi": (lambda **a: WORKLOAD.psi(**a), {"n": 1}, "n"),
    "Workload.quantiles": (
        lambda shares: WORKLOAD.quantiles([shares]), {"shares": 0.5}, "shares",
    ),
    "Adversary": (
        traces.Adversary, {"size": 100, "stored": 10, "rounds": 2, "subrounds": 2},
        "size stored rounds subrounds seed",
    ),
    "active_set": (
        traces.active_set, {"n": 100, "active": 10, "repeats": 3.0}, "n active repeats seed",
    ),
    "phase_shift": (
        traces.phase_shift, {"n": 100, "universe": 10}, "n exponent universe at seed",
    ),
    "power_law": (traces.power_law, {"n": 100, "universe": 10}, "n exponent universe seed"),
    "zipf": (traces.zipf, {"n": 100, "universe": 10}, "n exponent universe seed"),
    "uniform": (traces.uniform, {"n": 100, "universe": 10}, "n universe seed"),
    "ranked, ranks": (lambda ranks: traces.ranked([ranks, 2]), {"ranks": 1}, "ranks"),
    "ranked": (lambda **a: traces.ranked([1, 2], **a), {"seed": 1}, "seed"),
}  # fmt: skip


def cases():
    for name, (_, _, arguments) in CALLS.items():
        for argument in arguments.split():
            yield pytest.param(name, argument, id=f"{name}-{argument}")


ELEMENTS = {"values", "frequencies", "counts", "costs", "keys", "utility", "shares", "hashes", "at"}
ELEMENTS |= {"ranks", "ngrams"}
"""Arguments of which one number of several is replaced: messages name the argument alone."""


def names(text, argument, value):
    """Whether a message names an argument and the value, as Python writes it or by its type."""
    written = {type(value).__name__}
    with contextlib.suppress(ValueError):  # of an int of over 4300 digits
        written |= {repr(value), str(value)}
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        written |= {str(float(value)), str(getattr(value, "item", str)())}
    if value is None or argument in ELEMENTS:
        written.add("")
    if value is None and "pass exactly one of" in text:
        return True
    return re.search(rf"\b{argument}\b", text) and any(w.lower() in text.lower() for w in written)


@pytest.fixture(autouse=True)
def no_hang():
    def fail(*_):
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, fail)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(("name", "argument"), list(cases()))
def test_a_number_works_or_is_refused(name, argument):
    function, arguments, _ = CALLS[name]
    function(**arguments)
    wrong = []
    for i, value in enumerate(VALUES):
        changed = arguments | {argument: value}
        if argument in ("fpr", "bits_per_key"):  # only one of them
            changed.pop({"fpr": "bits_per_key", "bits_per_key": "fpr"}[argument], None)
        signal.alarm(15)
        try:
            function(**changed)
        except (TypeError, ValueError) as error:
            if not names(str(error), argument, value) or len(str(error)) > 400:
                wrong.append(f"{i}: {type(error).__name__}: {str(error)[:160]}")
        except BaseException as error:
            wrong.append(f"{i}: {type(error).__name__}: {str(error)[:160]}")
    signal.alarm(0)
    assert not wrong, "\n" + "\n".join(wrong)


CLASSES = [
    value
    for name in tamis.__all__
    if inspect.isclass(value := getattr(tamis, name)) and not issubclass(value, BaseException)
]
MADE_BY_OTHERS = {
    "Advice",
    "Layer",
    "Plan",
    "Workload",
    "Collection",
    "SkippingIndex",
    "SearchIndex",
}
"""Classes whose constructors are not called by users."""
SHARED = {"fpr", "bits_per_key", "seed"}
"""Arguments that all filters check alike, in one or another of their calls."""
INTERNAL = {
    "AsyncGuard.serve": {"port"},  # as in `Guard.serve`
    "Advice.measure": {"keys"},  # as in `advise`
    "Collection.open": {"length", "offset"},  # of a frame within a file
    "Collection.write": {"descriptor"},
    "Layer.bits_for": {"items"},
    "Layer.size": {"items"},
    "Workload.from_log_statistics": {"removed"},
    "train": {"categorical"},  # names of columns
}
PROTOCOL = {"changes", "lease", "run", "runs", "sample"}
"""Methods of stores that guards call."""


def public_calls():
    """Every public callable that takes numbers, with the names of those arguments."""
    classes = [*CLASSES, SkippingIndex, tamis.text.SearchIndex]
    classes += [stores.SQLite, stores.Redis, stores.Postgres, traces.Adversary]
    functions = [tamis.advise, tamis.dedup, tamis.hash_keys, tamis.plan, tamis.plan_collection]
    functions += [tamis.plan_stable, tamis.split, train, traces.active_set, traces.phase_shift]
    functions += [traces.power_law, traces.ranked, traces.uniform, traces.zipf]
    for function in functions:
        yield function.__name__, function
    for cls in classes:
        if cls.__name__ not in MADE_BY_OTHERS:
            yield cls.__name__, cls
        for name in dir(cls):
            method = getattr(cls, name)
            own = "tamis" in (getattr(method, "__module__", None) or "")
            if own and callable(method) and not name.startswith("_"):
                yield f"{cls.__name__}.{name}", method


def numeric(function):
    for name, parameter in inspect.signature(function).parameters.items():
        words = re.findall(r"\w+", str(parameter.annotation))
        if {"int", "float", "SupportsIndex"} & set(words) and "str" not in words[:1]:
            yield name


def test_every_numeric_argument_is_in_the_table():
    covered = {}
    for name, (_, _, arguments) in CALLS.items():
        owner = re.split(r"[ ,.]", name)[0]
        covered.setdefault(owner, set()).update(arguments.split())
    missing = [
        f"{name}({argument}=)"
        for name, function in public_calls()
        for argument in numeric(function)
        if argument not in covered.get(name.split(".")[0], set()) | SHARED
        and argument not in INTERNAL.get(name, ())
        and name.split(".")[-1] not in PROTOCOL
    ]
    assert not missing, missing
