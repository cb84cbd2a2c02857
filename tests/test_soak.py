"""The long runs, by `make soak`: a hundred million keys through every filter."""

import os

import numpy as np
import pytest

import tamis
from contract import SPECIMENS, within_noise

pytestmark = pytest.mark.skipif(
    not os.environ.get("TAMIS_SOAK"), reason="minutes and gigabytes: `make soak` runs it"
)

KEYS = 100_000_000


@pytest.mark.parametrize("specimen", SPECIMENS, ids=str)
def test_a_hundred_million_keys(specimen, tmp_path):
    keys = np.arange(KEYS, dtype=np.uint64)
    f = specimen.build(keys, fpr=0.01)
    assert len(f) == KEYS
    assert f.contains(keys).all()
    absent = keys[:10_000_000] + np.uint64(2**40)
    assert within_noise(f.contains(absent).mean(), f.expected_fpr, len(absent))
    f.save(tmp_path / "f")
    mapped = tamis.load(tmp_path / "f", mmap=True)
    assert mapped.contains(keys[::1000]).all()
    if specimen.cls is tamis.Quotient:
        assert f.bits_per_key <= (f.remainder_bits + 2.125) / 0.95
    if specimen.cls is tamis.Cuckoo:
        assert f.bits_per_key <= f.fingerprint_bits / 0.95
