"""The long runs, by `make soak`: a hundred million keys through every filter, and large sets."""

import os

import numpy as np
import pytest
from contract import SPECIMENS

import tamis
from tamis.testing.filters import within_noise

pytestmark = pytest.mark.skipif(
    not os.environ.get("TAMIS_SOAK"), reason="minutes and gigabytes: `make soak` runs it"
)

KEYS = 100_000_000


@pytest.mark.parametrize("specimen", SPECIMENS, ids=str)
def test_a_hundred_million_keys(specimen, tmp_path):
    keys = np.arange(KEYS, dtype=np.uint64)
    f = specimen.build(keys, fpr=0.01)
    # Large Bloom filters estimate their number of distinct keys: three standard deviations are 1 %.
    assert abs(len(f) - KEYS) <= (0.01 * KEYS if specimen.cls is tamis.Bloom else 0)
    # Stable filters are made to deny up to this fraction of their oldest keys.
    denied = 0 if specimen.cls.one_sided else 1e-4
    assert f.contains(keys).mean() >= 1 - denied
    absent = keys[:10_000_000] + np.uint64(2**40)
    measured = f.contains(absent).mean()
    if specimen.holds_classifier:  # it was planned for absent keys of fewer digits
        assert 0.8 * f.fpr_bound < measured < 1.25 * f.fpr_bound
    else:
        assert within_noise(measured, f.fpr_bound, len(absent))
    f.save(tmp_path / "f")
    mapped = tamis.load(tmp_path / "f", mmap=True)
    assert mapped.contains(keys[::1000]).mean() >= 1 - 5 * denied
    if specimen.cls is tamis.Quotient:
        assert f.bits_per_key <= (f.remainder_bits + 2.125) / 0.95
    if specimen.cls is tamis.Cuckoo:
        assert f.bits_per_key <= f.fingerprint_bits / 0.95


@pytest.mark.parametrize("kind", ["auto", "segmented", "truncated"])
def test_sets_of_one_to_ten_million_keys_side_by_side(kind, tmp_path):
    sizes = 10 ** np.arange(8)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    sets = (
        (str(size), np.arange(start, start + size))
        for start, size in zip(starts, sizes, strict=False)
    )
    tamis.Collection.build(sets, kind=kind, path=tmp_path / "c")
    c = tamis.Collection.open(tmp_path / "c", budget="8MB", hybrid=False)
    assert c.size_in_bytes <= 8_000_000
    for i, (start, size) in enumerate(zip(starts, sizes, strict=False)):
        keys = np.unique(np.linspace(start, start + size - 1, 5000).astype(np.int64))
        assert (c.candidates_many(keys)[1] == i).sum() == len(keys)
    trials = 100_000
    found = np.bincount(c.candidates_many(np.arange(-trials, 0))[1], minlength=len(sizes))
    # Small sets vary about their expectation.
    assert all(map(within_noise, found[3:] / trials, c.fprs[3:], [trials // 10] * 5))
