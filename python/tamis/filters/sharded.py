"""`tamis.Sharded`: a filter split by hash, built in parallel."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from tamis import _native
from tamis._types import FilePath, Keys
from tamis.filters.contract import Contract
from tamis.filters.ribbon import Ribbon
from tamis.filters.stacked import Stacked
from tamis.filters.stacking import Recipe, StackBuild
from tamis.planning.arguments import thread_count, whole

PARTITIONS = 256
"""The number of parts that hashes are split into before their number is known."""

SHARD_KEYS = 2_000_000
"""Target number of keys per shard: a shard is built in a few hundred megabytes."""

MOST_SHARDS = 2**15


class Sharded(_native.Sharded, Contract):
    """A filter in shards, each a filter of the keys in its part of the hash space.

    Shards are built in parallel on all cores, and `from_batches` builds from more keys than fit in
    memory. ``filter`` is the class of the shards (default: `Ribbon`); other arguments are passed to
    its ``build``.

    >>> f = Sharded.build(range(10_000), fpr=0.01, shards=4)
    >>> f.shards, bool(f.contains(range(10_000)).all())
    (4, True)
    """

    _kind = "sharded"

    @classmethod
    def build(
        cls,
        keys: Keys,
        *,
        filter: type[Contract] = Ribbon,
        shards: int | None = None,
        threads: int | None = None,
        seed: int = 0,
        key: bytes | None = None,
        **arguments: Any,
    ) -> Self:
        """Build a filter of these keys, in memory."""
        spill = _native.Spill(_partitions(shards), None, seed, key)
        spill.add(keys)
        return cls._of(_joined(spill, filter, shards, threads, arguments))

    @classmethod
    def from_batches(
        cls,
        batches: Iterable[Keys],
        *,
        filter: type[Contract] = Ribbon,
        shards: int | None = None,
        threads: int | None = None,
        directory: FilePath | None = None,
        seed: int = 0,
        key: bytes | None = None,
        **arguments: Any,
    ) -> Self:
        """Build a filter of the keys of many batches, which need not fit in memory together.

        The hashes, 16 bytes per key, are spilled to a temporary folder in ``directory`` (default:
        the system's), which is always removed.

        >>> len(Sharded.from_batches([[1, 2], [2, 3]], fpr=0.01))
        3
        """
        with tempfile.TemporaryDirectory(
            prefix="tamis-", dir=None if directory is None else os.fsdecode(directory)
        ) as folder:
            files = [str(Path(folder) / str(i)) for i in range(_partitions(shards))]
            spill = _native.Spill(len(files), files, seed, key)
            for batch in batches:
                spill.add(batch)
            return cls._of(_joined(spill, filter, shards, threads, arguments))

    def _describe(self) -> str:
        return f"{self.shards} shards"


def _partitions(shards: int | None) -> int:
    if shards is None:
        return PARTITIONS
    return whole("shards", shards, MOST_SHARDS, 1)


def _joined(
    spill: _native.Spill,
    filter: type[Contract],
    shards: int | None,
    threads: int | None,
    arguments: dict[str, Any],
) -> _native.Handle:
    """Build each shard and join them."""
    if not (isinstance(filter, type) and issubclass(filter, Contract)):
        raise TypeError(f"filter must be a class of filters, such as tamis.Ribbon, not {filter!r}")
    lengths = spill.lengths()
    if shards is None:
        shards = PARTITIONS
        # Two neighbouring ranges are one range: merge shards while they stay small.
        while shards > 1 and sum(lengths) <= (shards // 2) * SHARD_KEYS:
            shards //= 2
    step = len(lengths) // shards

    def distinct(shard: int, *, keep: bool = False) -> _native.Distinct:
        return spill.distinct(shard * step, (shard + 1) * step, keep)

    with ThreadPoolExecutor(min(thread_count(threads), shards)) as pool:
        if issubclass(filter, Stacked):
            keys = sum(pool.map(lambda shard: len(distinct(shard, keep=True)), range(shards)))
            recipe = Recipe.of(keys, **arguments)
            return Sharded._join(_stacks(recipe, distinct, shards, pool))

        def built(shard: int) -> _native.Handle:
            return filter._plan_kernel(distinct(shard), **arguments)

        return Sharded._join(list(pool.map(built, range(shards))))


def _stacks(
    recipe: Recipe, distinct: Callable[..., _native.Distinct], shards: int, pool: Executor
) -> list[_native.Handle]:
    """Build a stack per shard. The negatives are read once, for the first layers of all shards."""

    def begun(shard: int) -> _native.Handle:
        return StackBuild(recipe, distinct(shard, keep=True), 1 / shards).first()

    firsts = list(pool.map(begun, range(shards)))
    survivors = recipe.survivors(Sharded._join(firsts)).by_shard(shards)

    def finished(shard: int) -> _native.Handle:
        build = StackBuild(recipe, distinct(shard), 1 / shards)
        return build.finish(firsts[shard], survivors[shard])

    return list(pool.map(finished, range(shards)))
