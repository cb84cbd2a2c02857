"""Negatives with costs: plans minimize the expected cost."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tamis
from tamis import cli
from tamis.planning.stacked import exact, fractional_lengths
from tamis.planning.stacked.goal import Goal

KEYS = np.arange(1000)


@pytest.fixture(scope="module")
def costly():
    """Values whose costs have nothing to do with their counts, with a tenth of all unseen."""
    rng = np.random.default_rng(4)
    values = np.arange(10_000, 210_000)
    counts = np.floor(1e6 / np.arange(1, len(values) + 1) ** 0.8)
    costs = rng.pareto(1.2, len(values)) + 0.01
    return values, counts, costs


def test_the_costliest_come_first():
    w = tamis.Workload.from_counts(
        ["a", "b", "c", "b", "k", "d"], [5, 1, 2, 3, 9, 0], costs=[1, 10, 4, 2, 99, 7], keys=["k"],
        unseen=0.5,
    )  # fmt: skip
    assert w.head(3) == ["b", "c", "a"]  # 16, 8 and 5 in total
    assert w.counts.tolist() == [4, 2, 5]
    assert w.costs.tolist() == [4, 4, 1]
    assert w.mean_cost == pytest.approx(29 / 11)
    assert [w.psi(n) for n in range(4)] == pytest.approx([0, 2 / 11, 3 / 11, 0.5])
    assert w.cost_curve.psi([1, 2, 3]) == pytest.approx([8 / 29, 12 / 29, 0.5])
    assert "costs 2.636 on average" in str(w)
    assert "costliest: 'b', 'c', 'a'" in str(w)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), min_size=1), st.integers(1, 50))
def test_a_log_is_counted_as_its_counts_are(log, size):
    queries, costs = (np.array(each) for each in zip(*log, strict=True))
    whole = tamis.Workload.from_queries(queries, costs=costs, keys=[3])
    batches = [slice(at, at + size) for at in range(0, len(log), size)]
    parts = tamis.Workload.from_batches(
        [queries[each] for each in batches], costs=[costs[each] for each in batches], keys=[3]
    )
    spent, times = {}, {}
    for value, cost in log:
        if value != 3:
            spent[value] = spent.get(value, 0) + cost
            times[value] = times.get(value, 0) + 1
    for w in (whole, parts):
        assert len(w) == len(spent)
        found = dict(zip(np.asarray(w.values).tolist(), w.costs * w.counts, strict=True))
        assert found == pytest.approx(spent)
        assert sorted(w.counts.tolist()) == sorted(times.values())
        assert (np.diff(w.costs * w.counts) <= 1e-9).all()
        assert w.unseen == tamis.Workload.from_queries(queries, keys=[3]).unseen


def test_saved_with_their_costs(tmp_path, costly):
    values, counts, costs = costly
    w = tamis.Workload.from_counts(values, counts, costs=costs, unseen=0.1)
    w.save(tmp_path / "w.parquet")
    again = tamis.Workload.load(tmp_path / "w.parquet")
    assert (again.costs == w.costs).all()
    assert (again.counts == w.counts).all()
    plans = [tamis.plan(1000, each, bits_per_key=7) for each in (w, again)]
    assert plans[0] == plans[1]
    assert tamis.Plan.from_json(plans[0].to_json()) == plans[0]
    w.costs = w.costs[::-1]
    w.save(tmp_path / "disordered.parquet")
    with pytest.raises(tamis.FormatError, match="not in descending order"):
        tamis.Workload.load(tmp_path / "disordered.parquet")


def test_equal_costs_change_nothing(costly):
    values, counts, _ = costly
    plain = tamis.Workload.from_counts(values, counts, unseen=0.1)
    equal = tamis.Workload.from_counts(values, counts, costs=np.full(len(values), 3.5), unseen=0.1)
    for options in (
        {"bits_per_key": 7},
        {"fpr": 0.001},
        {"bits_per_key": 7, "last": "alternating"},
    ):
        a, b = tamis.plan(1000, plain, **options), tamis.plan(1000, equal, **options)
        assert a.layers == b.layers
        assert b.expected_fpr == pytest.approx(a.expected_fpr)
        assert b.expected_cost == pytest.approx(3.5 * a.expected_fpr)
        assert a.expected_cost is None


@pytest.mark.parametrize("last", ["exact", "alternating"])
def test_what_is_minimized_is_cost(costly, last):
    """Measured on all known values: lower than what a plan by counts costs, and as predicted."""
    values, counts, costs = costly
    w = tamis.Workload.from_counts(values, counts, costs=costs, unseen=0.1)
    by_counts = tamis.Workload.from_counts(values, counts, unseen=0.1)
    options = {"bits_per_key": 7, "last": last, "layer": "ribbon"}
    p, q = tamis.plan(len(KEYS), w, **options), tamis.plan(len(KEYS), by_counts, **options)
    assert p.psi == pytest.approx(w.psi(p.negatives))
    assert p.expected_fpr >= q.expected_fpr * 0.99
    measured = {"by cost": [], "by counts": []}
    for seed in range(8):
        for name, plan in (("by cost", p), ("by counts", q)):
            wrong = plan.build(KEYS, seed=seed).contains(values)
            known = (counts * costs * wrong).sum() / (counts * costs).sum()
            unknown = plan.build(KEYS, seed=seed).contains(np.arange(10**7, 10**7 + 100_000)).mean()
            measured[name].append(w.mean_cost * (0.9 * known + 0.1 * unknown))
    mean = {name: np.mean(each) for name, each in measured.items()}
    assert mean["by cost"] < 0.9 * mean["by counts"]
    assert mean["by cost"] == pytest.approx(p.expected_cost, rel=0.1)
    assert "expected cost" in str(p)
    assert "expected cost" not in str(q)


def test_no_other_number_of_negatives_costs_less(costly):
    values, counts, costs = costly
    w = tamis.Workload.from_counts(values, counts, costs=costs, unseen=0.1)
    curve, goal = w.cost_curve, Goal(len(KEYS), budget=7 * len(KEYS))
    p = tamis.plan(len(KEYS), w, bits_per_key=7, last="exact", layer="ribbon")
    search = exact.search_for("ribbon")
    for n in (p.negatives, *np.geomspace(1, len(values), 60).astype(int).tolist()):
        stack = search(goal, n, float(curve.psi(n)))
        found = stack and fractional_lengths.with_best_first_layer(stack, goal)
        if found:
            assert p.expected_cost <= found.expected_fpr * w.mean_cost * 1.01


def test_a_limit_of_the_rate_is_one_of_cost(costly):
    values, counts, costs = costly
    w = tamis.Workload.from_counts(values, counts, costs=costs, unseen=0.1)
    p = tamis.plan(len(KEYS), w, fpr=0.002)
    assert 0.0018 <= p.expected_cost / w.mean_cost <= 0.002


def test_advice_weighs_what_a_false_positive_costs(costly):
    values, counts, costs = costly
    w = tamis.Workload.from_counts(values, counts, costs=costs, unseen=0.1)
    best = tamis.advise(len(KEYS), w, bits_per_key=7).best
    assert best.plan.expected_cost == pytest.approx(best.weighted_fpr * w.mean_cost)
    assert best.weighted_fpr < best.expected_fpr


@pytest.mark.parametrize(
    ("costs", "error", "match"),
    [
        ([1], ValueError, "costs must have one item per value, not 1 for 2"),
        ([1, -1], ValueError, r"costs\[1\] must be finite and at least 0, not -1"),
        ([1, float("nan")], ValueError, r"costs\[1\] must be finite"),
        (["x", "y"], TypeError, "costs must be numbers"),
    ],
)
def test_costs_that_cannot_be(costs, error, match):
    with pytest.raises(error, match=match):
        tamis.Workload.from_counts(["a", "b"], [1, 2], costs=costs)
    with pytest.raises(error, match=match.replace("per value", "per query")):
        tamis.Workload.from_queries(["a", "b"], costs=costs)


def test_fewer_batches_of_costs_than_of_queries():
    with pytest.raises(ValueError, match="one array per batch of queries"):
        tamis.Workload.from_batches([["a"], ["b"]], costs=[[1]])


def test_all_costs_may_be_nothing():
    w = tamis.Workload.from_counts(["a", "b"], [1, 2], costs=[0, 0], unseen=0.5)
    assert (w.mean_cost, w.psi(2)) == (0.0, 0.5)
    assert tamis.plan(100, w, bits_per_key=8).expected_cost == 0


def test_a_column_of_a_log(tmp_path, capsys):
    keys, log = tmp_path / "keys.txt", tmp_path / "log.csv"
    keys.write_text("\n".join(f"key {i}" for i in range(500)))
    rows = [f"{i % 97},{1 + i % 7}" for i in range(3000)]
    log.write_text("\n".join(["query,ms", *rows]))
    out = tmp_path / "plan"

    def plan(column):
        arguments = ["--queries", log, "--queries-column", "query", "--cost-column", column]
        with pytest.raises(SystemExit) as ended:
            cli.main(list(map(str, ["plan", keys, "--bits-per-key", 8, "-o", out, *arguments])))
        return ended.value.code, capsys.readouterr().err

    assert plan("ms")[0] == 0
    assert tamis.Plan.from_json(out.read_text()).expected_cost is not None
    code, message = plan("name")
    assert code != 0
    assert "log.csv has no column 'name'; its columns are query, ms" in message
    log.write_text("query,ms\na,1\nb,x\n")
    assert "--cost-column must be a column of numbers, but 'ms'" in plan("ms")[1]
