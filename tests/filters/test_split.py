"""Builds in several places: `tamis.split`, `from_hashes` and `Sharded.join`."""

from __future__ import annotations

import multiprocessing
import pickle
import random
import subprocess
import sys
import tracemalloc
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import pytest
import reference

import tamis
from tamis.planning.kinds import KINDS

KEYS = [f"user{i}" for i in range(5000)]
ABSENT = [f"nobody{i}" for i in range(20_000)]
SECRET = bytes(range(16))
PLAIN = [tamis.Bloom, tamis.Quotient, tamis.Cuckoo, tamis.Fuse, tamis.Ribbon]


def collected(batches: list[list[str]], shards: int, **hash: Any) -> list[list[bytes]]:
    """Split batches, and bring together the parts of each shard."""
    return [
        list(parts)
        for parts in zip(*(tamis.split(b, shards, **hash) for b in batches), strict=True)
    ]


@pytest.mark.parametrize("cls", PLAIN)
@pytest.mark.parametrize("hash", [{}, {"seed": 7}, {"key": SECRET}], ids=["", "seed", "key"])
def test_one_shard_is_the_filter_of_all_keys(cls: Any, hash: dict[str, Any]) -> None:
    parts = collected([KEYS[:3000], KEYS[2000:]], 1, **hash)[0]
    key = {"key": SECRET} if "key" in hash else {}
    built = cls.from_hashes(*parts, fpr=0.01, **key)
    assert type(built) is cls
    assert built.to_bytes() == cls.build(KEYS, fpr=0.01, **hash).to_bytes()


@pytest.mark.parametrize("cls", PLAIN)
@pytest.mark.parametrize("hash", [{}, {"seed": 7}, {"key": SECRET}], ids=["", "seed", "key"])
def test_joined_shards_are_the_sharded_filter(cls: Any, hash: dict[str, Any]) -> None:
    """The same bytes, however the keys are divided and in whatever order the shards come."""
    expected = tamis.Sharded.build(KEYS, filter=cls, shards=8, fpr=0.01, **hash).to_bytes()
    key = {"key": SECRET} if "key" in hash else {}
    draw = random.Random(3)
    for tasks in (1, 3, 10):
        keys = KEYS + draw.sample(KEYS, 50)
        draw.shuffle(keys)
        collection = collected([keys[i::tasks] for i in range(tasks)], 8, **hash)
        for parts in collection:
            draw.shuffle(parts)
        shards = {i: cls.from_hashes(*parts, fpr=0.01, **key) for i, parts in enumerate(collection)}
        some = list(shards.items())
        draw.shuffle(some)
        assert tamis.Sharded.join(dict(some)).to_bytes() == expected
        assert tamis.Sharded.join(shard for _, shard in some).to_bytes() == expected
        halves = [
            tamis.Sharded.join([s for _, s in half], partial=True) for half in (some[:3], some[3:])
        ]
        assert tamis.Sharded.join(halves).to_bytes() == expected


@pytest.mark.parametrize("cls", PLAIN)
def test_the_only_shard_is_joined_too(cls: Any) -> None:
    """So that a program may compute how many shards it takes."""
    expected = tamis.Sharded.build(KEYS, filter=cls, shards=1, fpr=0.01)
    shard = cls.from_hashes(
        *(tamis.split(some, 1)[0] for some in (KEYS[::2], KEYS[1::2])), fpr=0.01
    )
    for shards in ([shard], {0: shard}):
        joined = tamis.Sharded.join(shards)
        assert joined.to_bytes() == expected.to_bytes()
        assert joined.contains(KEYS).all()
    with pytest.raises(ValueError, match=r"shards\[1\] is shard 0, not shard 1"):
        tamis.Sharded.join({1: shard})
    with pytest.raises(TypeError, match=r"shards\[0\] must be a Sharded filter"):
        tamis.Sharded.join([shard, shard])


@pytest.mark.parametrize("last", ["exact", "alternating"])
def test_stacks_in_shards(last: str) -> None:
    queries = [f"nobody{int(i)}" for i in np.random.default_rng(1).zipf(1.3, 30_000) % 3000]
    workload = tamis.Workload.from_queries(queries)
    plan = tamis.plan(len(KEYS), workload, bits_per_key=8, last=last)
    expected = tamis.Sharded.build(KEYS, filter=tamis.Stacked, shards=4, plan=plan)
    shards = [
        tamis.Stacked.from_hashes(*parts, plan=plan)
        for parts in collected([KEYS[::2], KEYS[1::2]], 4)
    ]
    assert tamis.Sharded.join(shards).to_bytes() == expected.to_bytes()
    with pytest.raises(ValueError, match="plan must be a plan for the keys of all shards"):
        tamis.Stacked.from_hashes(tamis.split(KEYS, 4)[0], workload=workload, bits_per_key=8)
    whole = tamis.Stacked.from_hashes(
        tamis.split(KEYS, 1)[0], workload=workload, bits_per_key=8, last=last
    )
    built = tamis.Stacked.build(KEYS, workload, bits_per_key=8, last=last)
    assert whole.to_bytes() == built.to_bytes()


def test_a_shard_alone_rejects_no_key() -> None:
    parts = tamis.split(KEYS, 4)
    shards = [tamis.Ribbon.from_hashes(part, fpr=0.001) for part in parts]
    for i, shard in enumerate(shards):
        assert isinstance(shard, tamis.Sharded)
        assert shard.missing == tuple(j for j in range(4) if j != i)
        assert shard.contains(KEYS).all()
        assert shard.expected_fpr == pytest.approx((3 + 0.001) / 4, rel=0.01)
        observed = shard.contains(ABSENT).mean()
        assert abs(observed - shard.expected_fpr) < 5 * (0.25 / len(ABSENT)) ** 0.5
        for again in (
            tamis.from_bytes(shard.to_bytes()),
            pickle.loads(pickle.dumps(shard)),
            shard.copy(),
        ):
            assert again.to_bytes() == shard.to_bytes()
            assert again.missing == shard.missing
            assert (again.contains(ABSENT) == shard.contains(ABSENT)).all()
    assert len(tamis.Sharded.join(shards)) == len(KEYS) == sum(map(len, shards))
    assert "3 missing" in repr(shards[0])


def test_empty_shards_are_shards() -> None:
    parts = tamis.split(["ada"], 16)
    shards = [tamis.Fuse.from_hashes(part, fpr=0.01) for part in parts]
    joined = tamis.Sharded.join(shards)
    assert "ada" in joined
    assert len(joined) == 1
    assert (
        joined.to_bytes()
        == tamis.Sharded.build(["ada"], filter=tamis.Fuse, shards=16, fpr=0.01).to_bytes()
    )


def test_what_does_not_belong_together_is_refused() -> None:
    one, other = tamis.split(KEYS, 4), tamis.split(KEYS, 4, seed=1)
    with pytest.raises(ValueError, match=r"shard 0 of 4, parts\[1\] to shard 2 of 4"):
        tamis.Ribbon.from_hashes(one[0], one[2], fpr=0.01)
    with pytest.raises(ValueError, match=r"shard 0 of 4, parts\[1\] to shard 0 of 2"):
        tamis.Ribbon.from_hashes(one[0], tamis.split(KEYS, 2)[0], fpr=0.01)
    with pytest.raises(tamis.IncompatibleError, match="same seed or key"):
        tamis.Ribbon.from_hashes(one[0], other[0], fpr=0.01)
    with pytest.raises(tamis.IncompatibleError, match="key is given"):
        tamis.Ribbon.from_hashes(one[0], key=SECRET, fpr=0.01)
    keyed = tamis.split(KEYS, 4, key=SECRET)
    assert SECRET not in b"".join(keyed)
    with pytest.raises(tamis.IncompatibleError, match="pass key="):
        tamis.Ribbon.from_hashes(keyed[0], fpr=0.01)
    with pytest.raises(tamis.IncompatibleError, match="key is not the one"):
        tamis.Ribbon.from_hashes(keyed[0], key=bytes(16), fpr=0.01)
    with pytest.raises(ValueError, match="parts is empty"):
        tamis.Ribbon.from_hashes(fpr=0.01)
    with pytest.raises(TypeError, match=r"parts\[0\] must be bytes that tamis.split made"):
        tamis.Ribbon.from_hashes("text", fpr=0.01)  # type: ignore[arg-type]
    with pytest.raises(tamis.FormatError, match="not a part"):
        tamis.Ribbon.from_hashes(tamis.Fuse.build(KEYS, fpr=0.1).to_bytes(), fpr=0.01)
    with pytest.raises(TypeError, match=r"LearnedBloom filters cannot be .*; these can: .*Bloom"):
        tamis.LearnedBloom.from_hashes(one[0], fpr=0.01)
    with pytest.raises(ValueError, match="shards must be from 1 to 32768, not 0"):
        tamis.split(KEYS, 0)

    shards = [tamis.Ribbon.from_hashes(part, fpr=0.01) for part in one]
    with pytest.raises(ValueError, match="is shard 1, not shard 0"):
        tamis.Sharded.join({0: shards[1], 1: shards[0], 2: shards[2], 3: shards[3]})
    with pytest.raises(ValueError, match="shards has shard 1 twice"):
        tamis.Sharded.join([shards[1], *shards])
    with pytest.raises(ValueError, match="shards lacks shard 2 of 4"):
        tamis.Sharded.join({i: shards[i] for i in (0, 1, 3)})
    with pytest.raises(tamis.IncompatibleError, match="same seed or key"):
        tamis.Sharded.join([*shards[:3], tamis.Ribbon.from_hashes(other[3], fpr=0.01)])
    with pytest.raises(tamis.IncompatibleError, match="the same split"):
        tamis.Sharded.join(
            [shards[0], tamis.Ribbon.from_hashes(*tamis.split(KEYS, 2)[1:], fpr=0.1)]
        )
    with pytest.raises(ValueError, match="one kind"):
        tamis.Sharded.join([*shards[:3], tamis.Fuse.from_hashes(one[3], fpr=0.01)])
    with pytest.raises(TypeError, match="must be a Sharded filter"):
        tamis.Sharded.join([shards[0], tamis.Ribbon.build(KEYS, fpr=0.01)])
    with pytest.raises(ValueError, match="shards is empty"):
        tamis.Sharded.join([])


def test_every_flip_and_truncation_of_a_part_is_refused() -> None:
    part = tamis.split(["ada", "grace"], 2)[0]
    for at in range(len(part)):
        with pytest.raises(tamis.FormatError, match=r"parts\[1\]"):
            tamis.Ribbon.from_hashes(part, part[:at], fpr=0.01)
        changed = bytearray(part)
        changed[at] ^= 1 << at % 8
        with pytest.raises(tamis.FormatError):
            tamis.Ribbon.from_hashes(changed, fpr=0.01)
    with pytest.raises(tamis.FormatError):
        tamis.from_bytes(part)


def test_a_part_that_lies_is_refused() -> None:
    """With right checksums: hashes of another shard would be rejected by the joined filter."""
    one, other = tamis.split(KEYS, 2)
    kind, hash_id, tag, count, capacity, values, contents = reference.parts(one)
    for forged in (
        reference.frame(kind, hash_id, tag, count, capacity, [1, 2], contents),
        reference.frame(kind, hash_id, tag, count, capacity, [0, 3], contents),
        reference.frame(kind, hash_id, tag, count, capacity, values, reference.parts(other)[-1]),
        reference.frame(kind, hash_id, tag, count + 1, capacity + 1, values, contents),
        reference.frame(kind, hash_id, tag, count, capacity, [2, 2], contents),
        reference.frame(kind, hash_id, tag, count, capacity, [0, 0], contents),
        reference.frame(kind, hash_id, tag, count, capacity, [0, 2**63], contents),
    ):
        with pytest.raises(tamis.FormatError, match=r"parts\[0\]: the part is damaged"):
            tamis.Ribbon.from_hashes(forged, fpr=0.01)


def test_a_part_takes_sixteen_bytes_per_key() -> None:
    keys = np.arange(100_000)
    parts = tamis.split(keys, 4)
    assert sum(map(len, parts)) <= 16 * len(keys) + 4 * 256
    tracemalloc.start()
    try:
        tamis.split(keys, 4)
        assert tracemalloc.get_traced_memory()[1] < 20 * len(keys)
    finally:
        tracemalloc.stop()


def _split(batch: range) -> list[bytes]:
    return tamis.split(batch, 4)


def _built(parts: tuple[bytes, ...]) -> tamis.Sharded:
    shard = tamis.Ribbon.from_hashes(*parts, fpr=0.01)
    assert isinstance(shard, tamis.Sharded)
    return shard


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_processes(method: str) -> None:
    """As the guide shows it: batches, parts and shards cross between processes."""
    batches = [range(i, i + 1000) for i in range(0, 10_000, 1000)]
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
        by_shard = zip(*pool.map(_split, batches), strict=True)
        joined = tamis.Sharded.join(pool.map(_built, by_shard))
    expected = tamis.Sharded.build(range(10_000), shards=4, fpr=0.01)
    assert joined.to_bytes() == expected.to_bytes()


@pytest.mark.parametrize("kind", [kind.filter for kind in KINDS.values() if kind.sizes])
def test_every_kind_of_a_size_takes_hashes(kind: str) -> None:
    part = tamis.split(KEYS, 1, seed=5)[0]
    built = getattr(tamis, kind).from_hashes(part, fpr=0.01)
    assert built.contains(KEYS).all()
    assert built.to_bytes() == getattr(tamis, kind).build(KEYS, fpr=0.01, seed=5).to_bytes()


def test_hashes_are_equal_in_another_process() -> None:
    code = "import sys, tamis; sys.stdout.buffer.write(tamis.split(['a', 'é', 'x' * 99], 1)[0])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert out.stdout == tamis.split(["a", "é", "x" * 99], 1)[0]


def test_a_task_of_a_build_takes_at_most_64_bytes_per_key() -> None:
    """As `tamis.spark.build` builds a shard, from an Arrow column of parts; see docs/spark.md."""
    pytest.importorskip("pyarrow")
    code = """
import numpy as np, pyarrow as pa, tamis
count = 3_000_000
starts = range(0, count, 1 << 20)
parts = [tamis.split(np.arange(s, min(s + (1 << 20), count)), 1)[0] for s in starts]
table = pa.table({"part": pa.array(parts, pa.binary())})
del parts
def memory(name):
    lines = dict(line.split(":") for line in open("/proc/self/status"))
    return int(lines[name].split()[0]) * 1024
open("/proc/self/clear_refs", "w").write("5")  # forgets the peak so far
before = memory("VmRSS")
tamis.Ribbon.from_hashes(*table["part"].to_pylist(), fpr=0.01)
print((memory("VmHWM") - before + table.nbytes) / count)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert 32 < float(out.stdout) < 64
