"""Workloads against counting by hand, for every form of column, and against bad input."""

import json
import math
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tamis
from tamis import Workload
from tamis._columns import as_list

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pl = pytest.importorskip("polars")
pd = pytest.importorskip("pandas")

FOLDER = Path(os.environ.get("TAMIS_DATA", Path(__file__).parents[3] / "shared" / "data"))

texts = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=60)

FORMS = {
    "list": list,
    "iterator": iter,
    "numpy": np.array,
    "arrow": pa.array,
    "chunks": lambda x: pa.chunked_array([x[:1], x[1:]]),
    "dictionary": lambda x: pa.array(x).dictionary_encode(),
    "polars": pl.Series,
    "pandas": pd.Series,
}


def left_out(queries):
    """The fraction of queries that differ from all others, one by one."""
    alone = sum(query not in queries[:i] + queries[i + 1 :] for i, query in enumerate(queries))
    return alone / len(queries) if queries else 0.0


def by_hand(queries, keys=()):
    """Counts, ψ and ℓ of a log by definition: leave out each query in turn, and split the log."""
    negatives = [query for query in queries if query not in keys]
    if not negatives:
        return {}, [0.0], 1.0
    half = len(negatives) // 2
    before, after = negatives[:half], negatives[half:]
    of_all, of_half = left_out(negatives), left_out(before)
    split = sum(query not in before for query in after) / len(after)
    unseen = of_all
    if half:
        continued = min(1.0, max(of_all, of_all + split - of_half))
        slower = (of_all + 1 / len(negatives)) / (of_half + 1 / half)
        unseen = max(of_all, math.sqrt(continued * split * min(1.0, slower)))
    counts = Counter(negatives).most_common()
    discount = sum(count == 1 for _, count in counts) / len(counts)
    rest = sum(count - discount for _, count in counts)
    psi = [0.0]
    for _, count in counts:
        psi.append(psi[-1] + (1 - unseen) * (count - discount) / rest if rest else 0.0)
    return dict(counts), psi, unseen


def test_a_log_of_keys_alone_leaves_nothing():
    w = tamis.Workload.from_batches([["a"] * 4, ["a"] * 4], keys=["a"])
    assert len(w) == 0
    assert w.removed == 8


@given(texts, st.sets(st.sampled_from("abcx")))
def test_a_log_by_hand(queries, keys):
    counts, psi, unseen = by_hand(queries, keys)
    for w in (
        Workload.from_queries(queries, keys=sorted(keys)),
        Workload.from_batches([queries[:7], queries[7:]], keys=sorted(keys)),
    ):
        assert dict(zip(as_list(w.values), w.counts.tolist(), strict=True)) == counts
        assert [w.psi(n) for n in range(len(w) + 1)] == pytest.approx(psi)
        assert w.unseen == pytest.approx(unseen)
        assert w.removed == sum(query in keys for query in queries)
        assert w.present == pytest.approx(w.removed / len(queries))
        assert w.error == 0


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("values", [["b", "a", "b", "ü"], [5, -1, 5, 2**40]])
def test_every_form_of_column(form, values):
    w = Workload.from_queries(FORMS[form](values), keys=FORMS[form](values[3:]))
    assert [str(v) for v in as_list(w.head(2))] == [str(v) for v in (values[0], values[1])]
    assert w.counts.tolist() == [2, 1]
    assert w.removed == 1
    again = Workload.from_batches([FORMS[form](values), FORMS[form](values), values])
    assert again.counts.tolist() == [6, 3, 3]
    counted = Workload.from_counts(FORMS[form](values), [1, 10, 2, 0])
    assert counted.counts.tolist() == [10, 3]


def test_signed_and_unsigned_batches_keep_their_values():
    batches = [np.array([2**63 + 1], np.uint64), np.array([-1], np.int64)]
    assert sorted(Workload.from_batches(batches).head(2)) == [-1, 2**63 + 1]


@given(st.lists(texts, max_size=6), st.integers(1, 6))
def test_a_sketch_keeps_its_error(batches, max_distinct):
    w = Workload.from_batches(batches, max_distinct=max_distinct)
    exact = Counter(query for batch in batches for query in batch)
    total = sum(exact.values())
    assert len(w) <= max(max_distinct, 8)
    assert w.error <= total / (max_distinct + 1)
    kept = dict(zip(w.head(100), w.counts.tolist(), strict=True))
    for value, count in exact.items():
        assert count - w.error <= kept.get(value, 0) <= count
    if w.error:
        lost = 1 - sum(kept.values()) / total
        assert w.unseen == pytest.approx(lost) or w.unseen_method == "split in time"
        assert w.unseen >= lost - 1e-12


def test_equal_input_gives_equal_order():
    rng = np.random.default_rng(3)
    queries = rng.integers(0, 1000, 20_000)
    one = Workload.from_queries(queries)
    two = Workload.from_queries(rng.permutation(queries))
    assert np.array_equal(one.head(1000), two.head(1000))


def test_the_size_of_batches_does_not_change_the_estimate():
    rng = np.random.default_rng(2)
    log = np.sort(rng.integers(0, 3000, 20_000)) + rng.integers(0, 300, 20_000)
    whole = Workload.from_queries(log, keys=range(100))
    for parts in (2, 7, 400):
        w = Workload.from_batches(np.array_split(log, parts), keys=range(100))
        assert (w.unseen, w.unseen_method) == (whole.unseen, "split in time")
        assert w.psi(50) == whole.psi(50)


def test_a_log_that_drifts_has_more_unseen_values():
    """Each value is queried in one interval of time; leave-one-out finds nearly all known."""
    rng = np.random.default_rng(9)
    log = np.sort(rng.integers(0, 2000, 40_000)) + rng.integers(0, 200, 40_000)
    known, later = log[:30_000], log[30_000:]
    w = Workload.from_queries(known)
    truth = 1 - np.isin(later, known).mean()
    assert w.unseen_method == "split in time"
    assert "split in time" in str(w)
    assert truth / 2 < w.unseen < truth * 2
    shuffled = Workload.from_queries(rng.permutation(known))
    assert shuffled.unseen < 0.01
    assert shuffled.with_log(known).unseen == w.unseen
    assert w.with_log(rng.permutation(known)) is w


def test_drift_is_seen_if_counts_do_not_fit():
    rng = np.random.default_rng(9)
    log = np.repeat([1, 2], 20_000) * 100 + rng.zipf(2.0, 40_000) % 100
    log[::100] = 10**6 + np.arange(400)
    w = Workload.from_batches(np.array_split(log, 40), max_distinct=250)
    assert w.error > 0
    assert w.unseen_method == "split in time"
    assert w.unseen == pytest.approx(0.99, abs=0.02)  # all values of the second half are new


def test_a_saved_workload_keeps_its_estimate(tmp_path):
    rng = np.random.default_rng(3)
    log = np.sort(rng.zipf(1.5, 5000) % 1000 + np.arange(5000) // 10)
    later = Workload.from_queries(log[2500:])
    w = Workload.from_queries(log)
    w.save(tmp_path / "w.parquet")
    again = Workload.load(tmp_path / "w.parquet")
    assert w.unseen_method == again.unseen_method == "split in time"
    assert w.unseen == pytest.approx(again.unseen)
    assert w.discount == again.discount > 0
    assert again.psi(10) == pytest.approx(w.psi(10))
    assert again.drift(w).total_variation == pytest.approx(0)
    assert again.drift(later).total_variation == pytest.approx(w.drift(later).total_variation)
    assert "split in time" in str(again)


def test_a_wrong_method_or_discount_is_refused(tmp_path):
    Workload.from_counts([1, 2], [3, 1], unseen=0.2).save(tmp_path / "w.parquet")
    table = pq.read_table(tmp_path / "w.parquet")
    known = json.loads(table.schema.metadata[b"tamis"])
    for change, message in (
        ({"discount": None}, "'discount'"),
        ({"unseen_method": None}, "'unseen_method'"),
        ({"discount": 1.5}, "discount must be a number from 0 to 1"),
        ({"unseen_method": "guess"}, "unseen_method is 'guess'"),
    ):
        changed = {k: v for k, v in (known | change).items() if v is not None}
        pq.write_table(
            table.replace_schema_metadata({"tamis": json.dumps(changed)}), tmp_path / "x.parquet"
        )
        with pytest.raises(tamis.FormatError, match=message):
            Workload.load(tmp_path / "x.parquet")


def test_the_unseen_fraction_of_counts_is_given():
    """Counts have no order in time, and may be in any unit."""
    w = Workload.from_counts([1, 2, 3], [1, 1, 1])
    assert (w.unseen, w.unseen_method, w.discount) == (0.0, "given", 0.0)
    assert w.psi(1) == pytest.approx(1 / 3)


def test_the_head_of_a_short_log():
    """Unseen values are not taken from frequent ones in proportion; ψ(10) was .081, not .198."""
    rng = np.random.default_rng(4)
    universe = 10**6
    frequencies = 1 / np.arange(1, universe + 1)
    frequencies /= frequencies.sum()
    found = [
        Workload.from_queries(rng.choice(universe, 1000, p=frequencies)).psi(10) for _ in range(20)
    ]
    assert np.mean(found) == pytest.approx(frequencies[:10].sum(), rel=0.05)


TRACES = ["twitter52", "orm_busy", "web07", "web12"]


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("seed", range(3))
def test_rates_on_real_logs_are_predicted_within_a_factor_of_two(name, seed):
    """Half of the values are keys; the first half of the log is known, the second is queried."""
    file = FOLDER / f"trace_{name}.parquet"
    if not file.exists():
        pytest.skip(f"{file} does not exist")
    trace = pq.read_table(file, columns=["key"]).column(0).to_numpy()
    values = np.unique(trace)
    keys = np.random.default_rng(seed).choice(values, len(values) // 2, replace=False)
    known, asked = np.array_split(trace, 2)
    asked = asked[~np.isin(asked, keys)]
    w = Workload.from_queries(known, keys=keys)
    for options in ({}, {"layer": "quotient", "last": "alternating"}):
        p = tamis.plan(len(keys), w, bits_per_key=8, **options)
        # A few values make up most queries, so the rate of one filter varies a lot.
        rate = np.mean([p.build(keys, seed=s).contains(asked).mean() for s in range(8)])
        assert rate / 2 < p.expected_fpr < 2 * rate


def test_an_estimate_of_what_is_unseen():
    """ℓ of a sample of Zipf's law agrees with the mass of what the sample has not."""
    rng = np.random.default_rng(5)
    universe, n = 20_000, 30_000
    frequencies = 1 / np.arange(1, universe + 1)
    frequencies /= frequencies.sum()
    w = Workload.from_queries(rng.choice(universe, n, p=frequencies))
    truth = 1 - frequencies[w.head(universe)].sum()
    assert w.unseen == pytest.approx(truth, abs=5 * math.sqrt(2 * truth / n))


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: Workload.from_counts(["a"], [-1]), ValueError, r"counts\[0\] must be .* not -1"),
        (
            lambda: Workload.from_counts(["a"], [math.nan]),
            ValueError,
            r"counts\[0\] must be .* not nan",
        ),
        (
            lambda: Workload.from_counts(["a"], [math.inf]),
            ValueError,
            r"counts\[0\] must be .* not inf",
        ),
        (lambda: Workload.from_counts(["a"], [1, 2]), ValueError, "same length, not 1 and 2"),
        (lambda: Workload.from_counts(["a", "b"], [1]), ValueError, "same length, not 2 and 1"),
        (lambda: Workload.from_counts([], [1]), ValueError, "same length, not 0 and 1"),
        (lambda: Workload.from_counts(["a"], [[1]]), ValueError, "must have one dimension, not 2"),
        (lambda: Workload.from_counts(["a"], ["x"]), TypeError, "counts must be numbers"),
        (
            lambda: Workload.from_counts(["a"], [1], unseen=2),
            ValueError,
            "unseen must be a number from 0 to 1, not 2",
        ),
        (
            lambda: Workload.from_counts(["a"], [1], unseen=math.nan),
            ValueError,
            "unseen must be .* not nan",
        ),
        (lambda: Workload.from_counts([1.5], [1]), TypeError, "a key is a str"),
        (lambda: Workload.from_queries("abc"), TypeError, "keys must be .* not one str"),
        (lambda: Workload.from_queries([None]), TypeError, "a key is a str"),
        (
            lambda: Workload.from_batches([["a"]], max_distinct=0),
            ValueError,
            "max_distinct must be .* not 0",
        ),
        (lambda: Workload.from_shape([1, -2]), ValueError, r"frequencies\[1\] must be .* not -2"),
        (lambda: Workload.zipf(math.nan, 10), ValueError, "exponent must be .* not nan"),
        (
            lambda: Workload.zipf("1", 10),
            TypeError,
            "exponent must be a number .* not '1'",
        ),
        (lambda: Workload.zipf(1, 0), ValueError, "universe must be .* not 0"),
        (lambda: Workload.zipf(1, 10, 11), ValueError, "sample must be from 0 to 10, not 11"),
        (lambda: Workload.zipf(1, 10).head(3), ValueError, "no values"),
        (lambda: Workload.zipf(1, 10).psi(-1), ValueError, r"n must be from 0 to \d+, not -1"),
        (
            lambda: Workload.zipf(1, 10).quantiles([1.5]),
            ValueError,
            "shares must be a number from 0 to 1, not 1.5",
        ),
    ],
)
def test_bad_input(call, error, says):
    with pytest.raises(error, match=says):
        call()


@pytest.mark.parametrize(
    "empty",
    [
        Workload.from_queries([]),
        Workload.from_batches([]),
        Workload.from_queries(["k"], keys=["k"]),
        Workload.from_counts(["a"], [0]),
        Workload.from_shape([]),
    ],
)
def test_nothing_known_gives_the_plain_filter(empty):
    assert (len(empty), empty.psi(10)) == (0, 0.0)
    p = tamis.plan(1000, empty, bits_per_key=10)
    assert (len(p.layers), p.negatives) == (1, 0)
    assert str(empty)


def test_saved_and_loaded(tmp_path):
    for w in (
        Workload.from_queries(["a", "b", "a", "k"], keys=["k"]),
        Workload.from_counts(np.arange(5), [5, 4, 3, 2, 1.5], unseen=0.25),
        Workload.from_counts([b"x", b"y"], [2, 1]),
        Workload.from_shape([3, 2, 1], unseen=0.5),
        Workload.zipf(1.1, 1000, 50),
    ):
        w.save(tmp_path / "w.parquet")
        again = Workload.load(tmp_path / "w.parquet")
        assert [again.psi(n) for n in range(6)] == pytest.approx([w.psi(n) for n in range(6)])
        assert (len(again), again.removed, again.present, again.error) == (
            (len(w), w.removed, w.present, w.error)
        )
        if w.values is not None:
            assert as_list(again.head(5)) == as_list(w.head(5))
            assert w.drift(again).total_variation == pytest.approx(0, abs=1e-12)
    pa.parquet.write_table(pa.table({"count": [1]}), tmp_path / "other.parquet")
    with pytest.raises(tamis.FormatError, match=r"other.parquet is not a saved workload"):
        Workload.load(tmp_path / "other.parquet")


counts = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 9), min_size=1)


@given(counts, counts, st.floats(0.05, 0.9), st.floats(0.05, 0.9))
def test_drift_bounds(before, after, unseen, later):
    a = Workload.from_counts(list(before), list(before.values()), unseen=unseen)
    b = Workload.from_counts(list(after), list(after.values()), unseen=later)
    d = a.drift(b)
    assert 0 <= d.total_variation <= math.sqrt(d.kl / 2) + 1e-9
    for n in range(len(a) + 1):
        one, two = d.psi(n)
        assert one == pytest.approx(a.psi(n))
        assert abs(one - two) <= d.total_variation + 1e-9
    assert a.drift(a).total_variation == pytest.approx(0, abs=1e-12)
    plan = tamis.plan(1000, a, bits_per_key=8)
    assert d.rate(plan) <= d.rate_bound(plan) + 1e-12
    assert a.drift(a).rate(plan) == pytest.approx(plan.expected_fpr)


def test_drift_of_shapes():
    a, b = Workload.zipf(1.0, 10**6, 10**5), Workload.zipf(0.7, 10**6, 10**5)
    d = a.drift(b)
    assert d.psi(1000) == (a.psi(1000), b.psi(1000))
    assert a.psi(1000) - b.psi(1000) <= d.total_variation <= math.sqrt(d.kl / 2)
    assert "total variation" in str(d)


def test_description_and_plot():
    w = Workload.from_queries(["a", "b", "a"] * 3 + ["k"], keys=["k"])
    assert "1 queries (10 %) for keys in the set were removed" in str(w)
    assert "most frequent: 'a', 'b'" in str(w)
    assert repr(w) == "<tamis.Workload: 2 values, 0 % unseen>"
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    ax = w.plot()
    assert ax.get_xscale() == "log"
    assert len(ax.lines[0].get_xdata()) == 2


@pytest.mark.parametrize(
    "use",
    [
        lambda log: tamis.Stacked.build(["a"], log, fpr=0.1),
        lambda log: tamis.plan(1000, log, fpr=0.1),
        lambda log: tamis.advise(1000, log),
        lambda log: tamis.AdaptiveStacked.build(["a"], log, fpr=0.1),
        lambda log: tamis.Sharded.build(["a"], filter=tamis.Stacked, workload=log, fpr=0.1),
    ],
)
def test_a_log_is_not_a_workload(use):
    with pytest.raises(TypeError, match=r"must be a tamis.Workload, such as .*, not tuple"):
        use(("b",))


def _zipf_log(seed, length=20_000):
    return (np.random.default_rng(seed).zipf(1.3, length) % 5000).astype(np.int64)


@pytest.mark.parametrize("parts", [1, 2, 7])
def test_a_merged_log_is_the_log(parts):
    """Counts, order of values and the estimate by leaving one out are those of the whole log."""
    log, keys = _zipf_log(1), np.arange(0, 5000, 10)
    whole = tamis.Workload.from_queries(log, keys=keys)
    pieces = [tamis.Workload.from_queries(part, keys=keys) for part in np.array_split(log, parts)]
    merged = tamis.Workload.merge(*pieces)
    assert merged.counts.tolist() == whole.counts.tolist()
    assert list(merged.values) == list(whole.values)
    assert (merged.removed, merged.present) == (whole.removed, whole.present)
    once = np.count_nonzero(whole.counts == 1)
    assert merged.unseen_method == "leave-one-out"
    assert merged.unseen == pytest.approx(once / whole.counts.sum())
    assert merged.discount == pytest.approx(whole.discount)
    shuffled = tamis.Workload.merge(*reversed(pieces))
    assert shuffled.unseen == merged.unseen
    assert (
        tamis.Workload.merge(tamis.Workload.merge(*pieces[:2]), *pieces[2:]).unseen == merged.unseen
    )


def test_a_merged_log_keeps_its_order():
    """If the parts are in order, drift between them counts, nearly as in the whole log."""
    log = _zipf_log(2) + np.arange(20_000) // 200 * 300  # every 200 queries other values
    whole = tamis.Workload.from_queries(log)
    assert whole.unseen_method == "split in time"
    pieces = [tamis.Workload.from_queries(part) for part in np.array_split(log, 20)]
    merged = tamis.Workload.merge(*pieces, ordered=True)
    assert merged.unseen_method == "split in time"
    assert merged.unseen == pytest.approx(whole.unseen, rel=0.1)
    assert tamis.Workload.merge(*pieces).unseen < 0.8 * whole.unseen


def test_merged_workloads_with_a_given_share():
    given = tamis.Workload.from_counts(["a"], [60], unseen=0.4)  # of 100 queries
    exact = tamis.Workload.from_counts(["b"], [100])
    merged = tamis.Workload.merge(given, exact)
    assert merged.unseen_method == "given"
    assert merged.unseen == pytest.approx(0.2)
    incomplete = tamis.Workload.from_batches([[1, 1, 1, 2], [1, 3, 4, 5]], max_distinct=2)
    assert incomplete.unseen_method == "not counted"
    log = tamis.Workload.from_queries([1, 1, 2, 2])
    both = tamis.Workload.merge(incomplete, log)
    lost = 8 - incomplete.counts.sum()
    assert both.unseen_method == "not counted"
    assert both.unseen == pytest.approx(lost / 12)
    assert both.error == incomplete.error
    assert tamis.Workload.merge().unseen == 1
    with pytest.raises(ValueError, match=r"parts\[1\] must be a workload with values"):
        tamis.Workload.merge(log, tamis.Workload.zipf(1.0, 10))


def test_merged_errors_add_up():
    """A value may lose queries in every part, so its merged count is too low by up to the sum."""
    log = [*["a"] * 5, *["b"] * 3, *["c"] * 3, *["d"] * 3]
    parts = [tamis.Workload.from_batches([log], max_distinct=2) for _ in range(3)]
    assert all(part.error > 0 for part in parts)
    merged = tamis.Workload.merge(*parts)
    assert merged.error == sum(part.error for part in parts)
    counts = dict(zip(merged.values, merged.counts.tolist(), strict=True))
    assert counts["a"] < 15 <= counts["a"] + merged.error


def test_merged_costs_are_those_of_the_log():
    log, costs = _zipf_log(3, 3000), np.random.default_rng(3).integers(1, 9, 3000)
    whole = tamis.Workload.from_queries(log, costs=costs)
    parts = [
        tamis.Workload.from_queries(log[half], costs=costs[half])
        for half in (slice(0, 1000), slice(1000, None))
    ]
    merged = tamis.Workload.merge(*parts)
    expected = dict(zip(whole.values, whole.costs, strict=True))
    assert dict(zip(merged.values, merged.costs, strict=True)) == pytest.approx(expected)
    with pytest.raises(ValueError, match=r"parts\[1\] must have costs"):
        tamis.Workload.merge(parts[0], tamis.Workload.from_queries(log))
