"""What is particular to shards: any filter inside, batches from anywhere, nothing left behind."""

import numpy as np
import pyarrow as pa
import pytest

import tamis


@pytest.mark.parametrize(
    "cls", [tamis.Bloom, tamis.Cuckoo, tamis.Fuse, tamis.Quotient, tamis.Ribbon]
)
def test_batches_build_what_a_column_builds(cls, tmp_path):
    keys = np.random.default_rng(3).integers(0, 2**63, 50_000)
    whole = tamis.Sharded.build(keys, filter=cls, fpr=0.01, shards=7)
    batches = (part for part in np.array_split(np.concatenate([keys, keys[:999]]), 13))
    spilled = tamis.Sharded.from_batches(
        batches, filter=cls, fpr=0.01, shards=7, directory=tmp_path, threads=1
    )
    assert spilled.to_bytes() == whole.to_bytes()
    assert not list(tmp_path.iterdir())
    assert whole.contains(keys).all()
    assert whole.shards == 7
    assert len(whole) == len(set(keys.tolist()))


def test_a_shard_is_the_filter_of_its_keys():
    """With one shard, the sharded filter errs on the very keys the plain one errs on."""
    keys, asked = np.arange(3000), np.arange(10_000)
    plain = tamis.Bloom.build(keys, fpr=0.05)
    one = tamis.Sharded.build(keys, filter=tamis.Bloom, fpr=0.05, shards=1)
    assert (one.contains(asked) == plain.contains(asked)).all()
    assert one.size_in_bits == plain.size_in_bits
    assert one.expected_fpr == plain.expected_fpr


def test_large_batches_are_answered_key_by_key():
    """They are sorted by shard, and the answers brought back into order."""
    asked = np.random.default_rng(4).integers(0, 200_000, 150_001)
    for shards in (1, 3, 100):
        f = tamis.Sharded.build(np.arange(100_000), fpr=0.05, shards=shards)
        found = f.contains(asked)
        assert (found == f.contains(asked.tolist())).all()
        assert found[asked < 100_000].all()
        assert 0.03 < found[asked >= 100_000].mean() < 0.06
        parts = pa.chunked_array([asked[:70_000], asked[70_000:70_001], asked[70_001:]])
        assert (found == f.contains(parts)).all()
        assert not len(f.contains(asked[:0]))


def test_the_number_of_shards_follows_the_keys(monkeypatch):
    monkeypatch.setattr("tamis.filters.sharded.SHARD_KEYS", 1000)
    for keys, shards in ((0, 1), (1000, 1), (1001, 2), (30_000, 32), (10**6, 256)):
        assert tamis.Sharded.build(np.arange(keys), fpr=0.1).shards == shards


def test_what_goes_wrong_leaves_nothing_behind(tmp_path):
    def broken():
        yield [1, 2]
        raise RuntimeError("the source dried up")

    with pytest.raises(RuntimeError, match="dried up"):
        tamis.Sharded.from_batches(broken(), fpr=0.1, directory=tmp_path)
    with pytest.raises(TypeError, match=r"keys\[1\] is None"):
        tamis.Sharded.from_batches([[1, 2], [3, None]], fpr=0.1, directory=tmp_path)
    with pytest.raises(ValueError, match=r"fpr must be a number between 0 and 1, .* not 7"):
        tamis.Sharded.from_batches([[1, 2]], fpr=7, directory=tmp_path)
    with pytest.raises(ValueError, match="shards must be from 1 to 32768, not 0"):
        tamis.Sharded.build([1], fpr=0.1, shards=0)
    with pytest.raises(FileNotFoundError):
        tamis.Sharded.from_batches([[1]], fpr=0.1, directory=tmp_path / "nowhere")
    assert not list(tmp_path.iterdir())


def test_parquet_batches(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    names = pa.array([f"user {i % 7000}" for i in range(20_000)])
    pq.write_table(pa.table({"user": names}), tmp_path / "users.parquet")
    batches = pq.ParquetFile(tmp_path / "users.parquet").iter_batches(1000, columns=["user"])
    f = tamis.Sharded.from_batches(batches, fpr=0.01)
    assert len(f) == 7000
    assert f.contains(names).all()
    f.save(tmp_path / "users.tamis")
    assert tamis.load(tmp_path / "users.tamis", mmap=True).contains(names).all()


def test_arguments_that_are_no_numbers_or_filters():
    """A pool of NaN threads would start none, and wait for ever."""
    for name, value in (("threads", float("nan")), ("threads", "2"), ("shards", 2.0)):
        with pytest.raises(TypeError, match=f"{name} must be an int, not "):
            tamis.Sharded.build(range(100), fpr=0.01, **{name: value})
    with pytest.raises(TypeError, match="filter must be a class of filters"):
        tamis.Sharded.build(range(100), fpr=0.01, filter=dict)
