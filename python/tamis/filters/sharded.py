"""`tamis.Sharded`: a filter split by hash, built in parallel."""

from __future__ import annotations

import _thread
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self, SupportsIndex

from tamis import _native
from tamis._checks import check_int, check_iterable, check_path, thread_count
from tamis._types import FilePath, Keys
from tamis.errors import IncompatibleError
from tamis.filters.contract import Filter
from tamis.filters.ribbon import Ribbon
from tamis.filters.stack_builder import Recipe, StackBuilder
from tamis.filters.stacked import Stacked

PARTITIONS = 256
"""The number of parts that hashes are split into before their number is known."""

SHARD_KEYS = 2_000_000
"""Target number of keys per shard: a shard is built in a few hundred megabytes."""

MAX_SHARDS = 2**15


class Sharded(_native.Sharded, Filter):
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
        filter: type[Filter] = Ribbon,
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
        filter: type[Filter] = Ribbon,
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
        check_iterable("batches", batches, "an iterable of batches of keys")
        with tempfile.TemporaryDirectory(
            prefix="tamis-",
            dir=None if directory is None else check_path(directory, "directory", "folder"),
        ) as folder:
            files = [str(Path(folder) / str(i)) for i in range(_partitions(shards))]
            spill = _native.Spill(len(files), files, seed, key)
            for batch in batches:
                spill.add(batch)
            return cls._of(_joined(spill, filter, shards, threads, arguments))

    @classmethod
    def join(
        cls, shards: Mapping[int, Sharded] | Iterable[Sharded], *, partial: bool = False
    ) -> Self:
        """Join the shards that `from_hashes` built, perhaps on other machines, to one filter.

        Every shard knows its place, so the order does not matter; in a mapping, its index must
        agree. A missing shard is an error unless ``partial`` is true: the filter then accepts every
        key of that shard. The only shard of a split may be given alone.

        >>> import tamis
        >>> parts = tamis.split(range(1000), 4)
        >>> f = Sharded.join(tamis.Fuse.from_hashes(part, fpr=0.01) for part in parts)
        >>> f.shards, bool(f.contains(range(1000)).all())
        (4, True)
        """
        check_iterable("shards", shards, "an iterable or a mapping of shards")
        given = list(shards.items() if isinstance(shards, Mapping) else enumerate(shards))
        if not given:
            raise ValueError("shards is empty; pass at least one")
        place, only = given[0]
        alone = len(given) == 1 and isinstance(only, Filter) and not isinstance(only, Sharded)
        if alone and only._takes_hashes():
            # For the only shard, from_hashes returns a filter of its own class.
            if isinstance(shards, Mapping) and place != 0:
                raise ValueError(f"shards[{place!r}] is shard 0, not shard {place!r}")
            return cls._of(_in_order([only._copied()]))
        found: dict[int, _native.Handle] = {}
        for place, shard in given:
            if not isinstance(shard, Sharded):
                raise TypeError(
                    f"shards[{place!r}] must be a Sharded filter, which from_hashes returns for "
                    f"one shard of several, not {shard!r}"
                )
            if shard.shards != given[0][1].shards:
                raise IncompatibleError(
                    "shards must come from the same split: one filter has "
                    f"{given[0][1].shards} shards, another {shard.shards}"
                )
            for index, kernel in shard._present():
                if isinstance(shards, Mapping) and index != place:
                    raise ValueError(f"shards[{place!r}] is shard {index}, not shard {place!r}")
                if index in found:
                    raise ValueError(f"shards has shard {index} twice")
                found[index] = kernel
        total = given[0][1].shards
        capacity = sum(shard.capacity for _, shard in given)
        joined = cls._of(cls._join(list(found.items()), total, capacity))
        if joined.missing and not partial:
            raise ValueError(
                f"shards lacks {_listed(joined.missing)} of {total}; pass partial=True to join "
                "the others"
            )
        return joined

    @property
    def missing(self) -> tuple[int, ...]:
        """The shards that are missing; their keys are all accepted."""
        present = {index for index, _ in self._present()}
        return tuple(index for index in range(self.shards) if index not in present)

    def _describe(self) -> str:
        missing = f", {len(self.missing)} missing" if self.missing else ""
        return f"{self.shards} shards{missing}"


def split(
    keys: Keys, shards: SupportsIndex, *, seed: int = 0, key: bytes | None = None
) -> list[bytes]:
    """Split keys by shard: return, for each shard, the hashes of its keys as bytes.

    A filter of all keys can be built on several machines: each splits its own keys, all parts of
    one shard are brought to one place, where ``from_hashes`` builds the shard, and `Sharded.join`
    joins the shards. A part takes 16 bytes per key, and says how its keys were hashed and which
    shard it belongs to. It does not contain the secret ``key``.

    >>> import tamis
    >>> one, two = tamis.split(range(10), 2), tamis.split(range(10, 20), 2)
    >>> shards = [tamis.Ribbon.from_hashes(*parts, fpr=0.01) for parts in zip(one, two)]
    >>> len(tamis.Sharded.join(shards))
    20
    """
    return _native.split(keys, _partitions(shards), seed=seed, key=key)


def _listed(shards: tuple[int, ...]) -> str:
    some = ", ".join(map(str, shards[:5])) + (", …" if len(shards) > 5 else "")
    return f"shard {some}" if len(shards) == 1 else f"shards {some}"


def _partitions(shards: SupportsIndex | None) -> int:
    if shards is None:
        return PARTITIONS
    return check_int("shards", shards, MAX_SHARDS, minimum=1)


def _joined(
    spill: _native.Spill,
    filter: type[Filter],
    shards: int | None,
    threads: int | None,
    arguments: dict[str, Any],
) -> _native.Handle:
    """Build each shard and join them."""
    if not (isinstance(filter, type) and issubclass(filter, Filter)):
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

    count = thread_count(threads)
    if issubclass(filter, Stacked):
        keys = sum(_each(lambda shard: len(distinct(shard, keep=True)), shards, count))
        recipe = Recipe.of(keys, **arguments)
        return _in_order(_stacks(recipe, distinct, shards, count))

    def built(shard: int) -> _native.Handle:
        return filter._plan_kernel(distinct(shard), **arguments)

    return _in_order(_each(built, shards, count))


def _each(work: Callable[[int], Any], shards: int, threads: int) -> list[Any]:
    """Call ``work`` with each shard, on this thread and up to ``threads - 1`` others.

    Threads take the next shard when they are done with one. So all are built wherever fewer
    threads can be started, and nothing waits for one that fails before it has taken a shard.
    """
    waiting, results = iter(range(shards)), [None] * shards
    lock, done = threading.Lock(), threading.Semaphore(0)
    errors: list[BaseException] = []

    def run() -> None:
        while True:
            with lock:
                shard = next(waiting, None)
            if shard is None:
                return
            try:
                if not errors:
                    results[shard] = work(shard)
            except BaseException as error:
                errors.append(error)
            finally:
                done.release()

    for _ in range(1, min(threads, shards)):
        try:
            _thread.start_new_thread(run, ())
        except (RuntimeError, MemoryError):  # the system starts no more
            break
    run()
    for _ in range(shards):
        done.acquire()
    if errors:
        raise errors[0]
    return results


def _in_order(shards: list[_native.Handle]) -> _native.Handle:
    return Sharded._join(list(enumerate(shards)), len(shards))


def _stacks(
    recipe: Recipe, distinct: Callable[..., _native.Distinct], shards: int, threads: int
) -> list[_native.Handle]:
    """Build a stack per shard. The negatives are read once, for the first layers of all shards."""

    def first_layer(shard: int) -> _native.Handle:
        return StackBuilder(recipe, distinct(shard, keep=True), 1 / shards).first()

    firsts = _each(first_layer, shards, threads)
    survivors = recipe.survivors(_in_order(firsts)).by_shard(shards)

    def finished(shard: int) -> _native.Handle:
        build = StackBuilder(recipe, distinct(shard), 1 / shards)
        return build.finish(firsts[shard], survivors[shard])

    return _each(finished, shards, threads)
