"""Traces have exactly the documented distributions, and depend only on the seed."""

import numpy as np
import pytest
from scipy import stats

from tamis import traces

N = 400_000


def ranks_of(keys, universe, seed):
    """Undo `ranked` by a table."""
    table = traces.ranked(range(universe), seed=seed)
    order = np.argsort(table)
    places = np.searchsorted(table, keys, sorter=order)
    ranks = order[np.minimum(places, universe - 1)]
    assert (table[ranks] == keys).all()
    return ranks


def agrees(counts, expected):
    """A chi-square test that one fair stream in a million fails, on cells of at least ten."""
    order = np.argsort(expected)[::-1]
    counts, expected = counts[order], expected[order]
    cells = min(np.count_nonzero(expected >= 10), len(counts) - 1)
    counts = np.append(counts[:cells], counts[cells:].sum())
    expected = np.append(expected[:cells], expected[cells:].sum())
    if expected[-1] < 10:
        counts = np.append(counts[:-2], counts[-2:].sum())
        expected = np.append(expected[:-2], expected[-2:].sum())
    return stats.chisquare(counts, expected).pvalue > 1e-6


@pytest.mark.parametrize("exponent", [0, 0.5, 0.99, 1.0, 1.0000001, 1.5, 3])
@pytest.mark.parametrize("universe", [2, 7, 1000])
def test_zipf_is_exact(exponent, universe):
    keys = traces.zipf(N, exponent=exponent, universe=universe, seed=universe)
    share = np.arange(1, universe + 1.0) ** -exponent
    counts = np.bincount(ranks_of(keys, universe, universe), minlength=universe)
    assert agrees(counts, N * share / share.sum())


def test_zipf_of_one_key():
    assert (traces.zipf(100, universe=1) == traces.ranked([0])).all()


def test_zipf_of_a_large_universe():
    """The exact shares of the first rank and of the upper half, at 10¹² ranks."""
    universe, seed = 10**12, 4
    keys = traces.zipf(N, exponent=1.0, universe=universe, seed=seed)
    harmonic = np.log(universe) + np.euler_gamma + 0.5 / universe
    first = (keys == traces.ranked([0], seed=seed)).mean()
    assert abs(first - 1 / harmonic) < 5 * (1 / harmonic / N) ** 0.5


def test_phase_shift_reverses_popularity():
    universe, seed = 50, 9
    keys = traces.phase_shift(N, exponent=1.0, universe=universe, at=0.25, seed=seed)
    assert (keys[: N // 4] == traces.zipf(N // 4, universe=universe, seed=seed)).all()
    share = np.arange(1, universe + 1.0) ** -1
    share *= (N - N // 4) / share.sum()
    after = np.bincount(ranks_of(keys[N // 4 :], universe, seed), minlength=universe)
    assert agrees(after[::-1], share)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 0.9])
def test_power_law_is_exact(exponent):
    universe = 300
    keys = traces.power_law(N, exponent=exponent, universe=universe, seed=3)
    edges = (np.arange(universe + 1) / universe) ** (1 - exponent)
    counts = np.bincount(ranks_of(keys, universe, 3), minlength=universe)
    assert agrees(counts, N * np.diff(edges))


def test_uniform_is_exact():
    counts = np.bincount(ranks_of(traces.uniform(N, universe=99, seed=8), 99, 8), minlength=99)
    assert agrees(counts, np.full(99, N / 99))


def test_active_set_drifts_along_a_bell():
    active, repeats, seed = 1000, 20.0, 6
    keys = traces.active_set(N, active=active, repeats=repeats, seed=seed)
    ranks = ranks_of(keys, int(N / repeats) + active + 1, seed)
    # Where in the active set a query fell, up to the rounding of its rank.
    age = (ranks + 0.5 - np.arange(N) / repeats) / active
    assert -0.5 / active <= age.min()
    assert age.max() <= 1 + 0.5 / active
    bell = stats.irwinhall(3).cdf if hasattr(stats, "irwinhall") else _three_uniforms
    cells = np.linspace(0, 1, 21)
    shares = np.diff(bell(3 * cells))
    counts = np.histogram(age, cells)[0]
    # The rounding blurs each edge by half a rank, which is a fortieth of a cell here.
    assert np.abs(counts / N - shares).max() < 0.002
    middle = np.bincount(ranks)[active:-active]
    assert abs(middle.mean() - repeats) < 5 * (repeats / len(middle)) ** 0.5


def _three_uniforms(x):
    """The distribution of the sum of three uniform numbers."""
    return sum(
        sign * np.maximum(x - shift, 0) ** 3 / 6 for shift, sign in enumerate((1, -3, 3, -1))
    )


def test_adversary_whittles_to_what_fools():
    stored = 1000
    adversary = traces.Adversary(5000, stored=stored, rounds=7, subrounds=3, seed=1)
    everything = adversary.queries
    fooled = everything[::10]
    asked = 0
    for queries in adversary:
        asked += 1
        adversary.report(np.isin(queries, fooled))
    assert asked == 7 * 3
    assert adversary.rate == 1
    assert (adversary.queries == fooled).all()


def test_adversary_stops_at_a_hundredth_of_the_keys():
    adversary = traces.Adversary(5000, stored=1000, seed=1)
    for queries in adversary:
        adversary.report(np.arange(len(queries)) < 10)
    assert (adversary.round, len(adversary.queries)) == (1, 10)
    assert adversary.rate == 10 / 5000


def test_adversary_wants_its_answers():
    adversary = traces.Adversary(50, stored=10)
    subrounds = iter(adversary)
    next(subrounds)
    with pytest.raises(ValueError, match="must have one answer for each of the 50 queries"):
        adversary.report(np.zeros(3, dtype=bool))
    with pytest.raises(RuntimeError, match=r"report\(\)"):
        next(subrounds)


GENERATORS = {
    "zipf": traces.zipf,
    "phase_shift": traces.phase_shift,
    "power_law": traces.power_law,
    "active_set": traces.active_set,
    "uniform": lambda n, seed: traces.uniform(n, universe=10**6, seed=seed),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_same_seed_same_stream(name):
    make = GENERATORS[name]
    assert (make(100_000, seed=1) == make(100_000, seed=1)).all()
    assert (make(100_000, seed=1) != make(100_000, seed=2)).any()
    assert len(make(0, seed=1)) == 0


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: traces.zipf(-1), "n must be from 0 to 281474976710656, not -1"),
        (lambda: traces.zipf(1, universe=0), "universe must be from 1 to .*, not 0"),
        (lambda: traces.zipf(1, exponent=float("nan")), "exponent must be .* not nan"),
        (lambda: traces.power_law(1, exponent=1), "exponent must be .* not 1"),
        (lambda: traces.phase_shift(1, at=2), "at must be .* not 2"),
        (lambda: traces.active_set(1, repeats=0), "repeats must be .* not 0"),
        (
            lambda: traces.uniform(1, universe=5, seed=-1),
            "seed must be from 0 to 18446744073709551615, not -1",
        ),
    ],
)
def test_bad_arguments_are_named(call, says):
    with pytest.raises(ValueError, match=says):
        call()
