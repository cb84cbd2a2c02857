"""What the experiments on stacked filters measure with: their own layers, draws and files."""

import math

import numpy as np
import pytest

import tamis
from tamis.planning.stacked import predictions

pytest.importorskip("pyarrow")
older = pytest.importorskip("experiments.stacked.older", reason="not part of the package")
from experiments.stacked import datasets, figure2, setting, storage  # noqa: E402


def test_direct_layers_accept_all_keys_and_look_up_as_predicted():
    keys, known = np.arange(20_000), setting.FIRST_NEGATIVE + np.arange(40_000)
    rates = [0.05, 0.1, 0.05]
    stack = older.Layers(keys, known, rates)
    accepted, lookups = stack.ask(keys)
    predicted = predictions.checks(rates)
    assert accepted == 1
    assert lookups == pytest.approx(predicted.keys, rel=0.02)
    others = setting.unseen(200_000)
    for asked, checks, rate in (
        (known, predicted.frequent, predictions.frequent_rate(rates)),
        (others, predicted.infrequent, predictions.infrequent_rate(rates)),
    ):
        accepted, lookups = stack.ask(asked)
        assert lookups == pytest.approx(checks, rel=0.02)
        assert accepted == pytest.approx(rate, abs=5 * math.sqrt(rate / len(asked)))


@pytest.mark.parametrize("layers", [1, 3, 5, 7])
def test_equal_layers_fit_the_budget(layers):
    for bits in (4.0, 8.0, 12.0):
        rates = older.equal_layers(bits, layers, 9.0, 0.9)
        sizes = older.bits_per_item(np.array(rates)) * predictions.items(rates, 1.0, 9.0)
        assert sizes.sum() <= bits * 1.0001
        assert predictions.expected_rate(rates, 0.9) <= older.equal_layers(bits, 1, 9.0, 0.9)[0]


def test_synthetic_queries_follow_zipfs_law():
    of = datasets.Synthetic(quick=True)
    asked = of.draw(200_000, seed=1)
    for first in (10, 1000, 100_000):
        head = tamis.traces.ranked(setting.FIRST_NEGATIVE + np.arange(1, first + 1))
        share = of.workload.psi(first)
        spread = 5 * math.sqrt(share * (1 - share) / len(asked))
        assert np.isin(asked, head).mean() == pytest.approx(share, abs=spread + 1e-4)
    assert not np.isin(asked, of.keys).any()


def test_wasted_lookups_in_files_are_those_that_the_filter_accepts(tmp_path):
    keys, absent = tamis.traces.ranked(range(2000)), tamis.traces.ranked(range(2000, 12_000))
    f = tamis.Bloom.build(keys, bits_per_key=6)
    with storage.files(tmp_path, keys) as engines:
        assert "sqlite" in engines
        for get in engines.values():
            assert get(int(keys[0])) is not None
            assert storage.asked_through(f, absent, get)[0] == f.contains(absent).mean() > 0
            assert storage.asked_through(None, absent[:100], get)[0] == 1


def test_theorem_3_gives_9_6_percent_where_the_paper_says_7():
    assert figure2.theorem(0.01, 1.0) == pytest.approx(0.096, abs=5e-4)
    assert math.isnan(figure2.theorem(0.05, 100.0))
