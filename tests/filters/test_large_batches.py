"""Batches that are answered in the order of the filter's memory: none of the answers changes."""

import numpy as np
import pytest

import tamis


def test_a_large_batch_is_answered_as_small_ones_are():
    """A filter beyond the last cache, and keys of which some are asked again and again."""
    count = 30_000_000
    f = tamis.Cuckoo.build(np.arange(count), fpr=2**-8)
    assert f.size_in_bits // 8 > 1 << 25
    asked = np.random.default_rng(1).integers(0, 2 * count, 300_000)
    asked[::7] = asked[0]
    answers = f.contains(asked)
    assert answers[asked < count].all()
    small = [f.contains(some) for some in np.array_split(asked, 300)]
    assert (answers == np.concatenate(small)).all()
    assert 0 < answers[asked >= count].mean() < 2**-7
    # As many as several threads share, and what is no key among those of the last thread.
    many = np.tile(asked, 15)
    assert (f.contains(many) == np.tile(answers, 15)).all()
    bad = len(many) - 1000
    pa = pytest.importorskip("pyarrow")
    column = pa.array(many, mask=np.arange(len(many)) == bad)
    with pytest.raises(TypeError, match=rf"keys\[{bad}\] is null"):
        f.contains(column)
