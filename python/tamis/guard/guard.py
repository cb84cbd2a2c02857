"""`Guard` itself: questions, writes, and whether the filter can be trusted."""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Self

import numpy as np

from tamis._native import hash_keys
from tamis._statistics import History, Statistics, Stretch, Tally, Watch
from tamis._types import FilePath, Key, Keys
from tamis.errors import CapacityError
from tamis.filters import from_bytes
from tamis.filters.telescoping import AdaptiveQuotient
from tamis.guard import snapshot as snapshots
from tamis.guard.filling import adapts, checked, filled, insert
from tamis.guard.keys import listed, of_each_kind
from tamis.guard.limit import Limit, now
from tamis.guard.regions import REGIONS, Before, Regions, Remote
from tamis.pictures import drawn_history
from tamis.stores.contract import Hashes, LeaseError, Plain, Store, Value, plain

_log = logging.getLogger("tamis.guard")


class Guard:
    """A filter in front of a store: asks the store only what the filter does not deny.

    ``filter`` is an empty filter that takes insertions, which the guard fills, or a filter of all
    keys of the store, which it checks. It learns from false positives if it can.

    ``snapshot`` names a file for the filter between runs; without one, opening reads all keys.
    ``key`` is the filter's secret key if it has one; the store keeps it for the next time.
    ``lease`` is how many seconds another guard has to wait when this one dies.
    ``adaptations_per_second`` bounds what strangers can make the filter do.
    ``on_rate`` is called with the statistics when more false positives come than expected, and
    when that is over; without it a warning is logged.

    >>> import tamis
    >>> g = Guard(tamis.stores.Memory(), tamis.Quotient(capacity=1000, fpr=2**-8))
    >>> g.put_many({"ada": "1815", "grace": "1906"})
    >>> g.get("ada"), g.get("alan"), "grace" in g
    ('1815', None, True)
    >>> g.delete("grace")
    True
    >>> g.stats.questions, g.stats.reads_saved
    (3, 1)
    """

    def __init__(
        self,
        store: Store,
        filter: Any,
        *,
        snapshot: FilePath | None = None,
        key: bytes | None = None,
        lease: float = 10.0,
        adaptations_per_second: float | None = None,
        on_rate: Callable[[Statistics], object] | None = None,
    ) -> None:
        """Open the store: from the snapshot if it is of the store's epoch, or by reading all keys.

        If another guard holds the lease, this one answers but does not write.
        """
        if not lease > 0:
            raise ValueError(f"lease is {lease}; a number of seconds above 0 is wanted")
        if adaptations_per_second is not None and not adaptations_per_second >= 0:
            raise ValueError(
                f"adaptations_per_second is {adaptations_per_second}; a number from 0, or None for "
                "no limit, is wanted"
            )
        self.store = store
        self.filter = filter
        self._snapshot, self._seconds = snapshot, float(lease)
        self._owner = secrets.token_hex(16)
        self._limit = Limit(adaptations_per_second)
        self._on_rate, self._watch, self._history = on_rate, Watch(), History()
        self._regions, self._remote, self._tally = Regions(), Remote(store), Tally()
        # The filter and the index change, and commits follow each other, under these.
        self._changing, self._committing = threading.RLock(), threading.RLock()
        self._epoch = ""
        self._trusted = False
        self._lease_until = 0.0
        self._attached = False  # whether the store's index is kept with this filter's hash
        self._mending: threading.Thread | None = None
        self._mend_after, self._mend_pause = 0.0, 1.0
        self._closed = False
        self._key = self._secret(key)
        empty = filter.inserts and len(filter) == 0
        self._empty = zlib.compress(filter.to_bytes(), 1) if empty else None
        self._take_lease()
        try:
            if not self._restore():
                self.rebuild()
        except BaseException:
            store.release(self._owner)
            raise

    # Questions.

    def get(self, key: Key) -> Value | None:
        """Return the value of a key, or `None` if it is absent."""
        if not self._sure():
            value = self.store.get_many([plain(key)])[0]
            self._tally.count(questions=1, passed=1)
            return value
        if key not in self.filter:
            self._answered(1, 1, 0, [])
            return None
        hashes = self._hashes([key])
        counts = self._regions.counts(self._regions.of(hashes))
        value = self.store.get_many([plain(key)])[0]
        if value is not None:
            self._answered(1, 0, 1, [])
            return value
        self._answered(1, 0, 0, hashes[:, 1].tolist())
        self._learn([key], hashes, counts)
        return None

    def get_many(self, keys: Keys) -> list[Value | None]:
        """Return the value of each key, or `None` where it is absent."""
        given = listed(keys)
        if not self._sure():
            values = self.store.get_many([plain(key) for key in given])
            self._tally.count(questions=len(given), passed=len(given))
            return values
        answers: list[Value | None] = [None] * len(given)
        places = self._maybe(given)
        maybe = [given[i] for i in places]
        hashes = self._hashes(maybe)
        counts = self._regions.counts(self._regions.of(hashes))
        values = self.store.get_many([plain(key) for key in maybe])
        wrong = [i for i, value in enumerate(values) if value is None]
        for i, value in zip(places, values, strict=True):
            answers[i] = value
        saved, found = len(given) - len(places), len(places) - len(wrong)
        self._answered(len(given), saved, found, hashes[wrong, 1].tolist())
        if wrong:
            self._learn([maybe[i] for i in wrong], hashes[wrong], [counts[i] for i in wrong])
        return answers

    def __contains__(self, key: Key) -> bool:
        return self.get(key) is not None

    def __iter__(self) -> Iterator[Plain]:
        """Go through the keys of the store, text as bytes."""
        _, parts = self.store.contents()
        for part in parts:
            yield from part

    # Writes.

    def put(self, key: Key, value: Value) -> None:
        """Write a key and its value."""
        self.put_many({key: value})

    def put_many(self, items: Any) -> None:
        """Write keys and values, given as a mapping or as pairs, in one commit."""
        pairs: Iterable[tuple[Key, Value]] = items.items() if hasattr(items, "items") else items
        values: dict[Plain, Value] = {}
        for key, value in pairs:
            if not isinstance(value, (bytes, str)):
                kind = type(value).__name__
                raise TypeError(
                    f"the value of {key!r} is {value!r} (of type {kind}); bytes or str is wanted"
                )
            values[plain(key)] = value
        if not values:
            return
        keys = list(values)
        hashes = self._hashes(keys)
        self._need_lease()
        with self._regions.written(self._touched(hashes)):
            new = self._absent(keys)
            fresh = hashes[new]
            if new:
                self._insert([keys[i] for i in new], fresh)
            try:
                with self._committing:
                    commit = self.store.put_many(keys, list(values.values()), self._owner)
                    self._moved(commit.before, commit.after)
            except LeaseError:
                self._lease_until, self._attached = 0.0, False
                raise
            finally:
                self._remote.ended(fresh)

    def delete(self, key: Key) -> bool:
        """Remove a key; tell whether it was there."""
        return self.delete_many([plain(key)])[0]  # type: ignore[arg-type]

    def delete_many(self, keys: Keys) -> list[bool]:
        """Remove keys in one commit; tell for each whether it was there."""
        given = [plain(key) for key in listed(keys)]
        distinct = list(dict.fromkeys(given))
        if not distinct:
            return []
        hashes = self._hashes(distinct)
        self._need_lease()
        with self._regions.written(self._touched(hashes)):
            try:
                with self._committing:
                    commit = self.store.delete_many(distinct, self._owner)
                    self._moved(commit.before, commit.after)
            except LeaseError:
                self._lease_until, self._attached = 0.0, False
                raise
            existed = dict(zip(distinct, commit.existed, strict=True))
            self._remove([key for key in distinct if existed[key]])
        # A key that is given twice is there only the first time.
        return [existed.pop(key, False) for key in given]

    # State.

    @property
    def stats(self) -> Statistics:
        """What the guard did so far."""
        return self._tally.read(trusted=self._trusted, expected_fpr=self.filter.expected_fpr)

    def rebuild(self) -> None:
        """Fill the filter anew from the store, or check it if it is one that takes no keys.

        Reads go on meanwhile, to the store; writes wait.
        """
        with self._regions.held():
            if self._holds_lease():
                self._attach()
            if self._empty is None:
                filter, epoch = self.filter, checked(self.filter, self.store)
            else:
                filter, epoch = filled(self._empty, self._key, self.store)
            self.filter, self._epoch, self._trusted = filter, epoch, True
            self._mend_pause = 1.0
            self._tally.count(rebuilds=1)
            # What came while the keys were read.
            self._follow()

    def save(self) -> None:
        """Write the snapshot now."""
        if self._snapshot is None:
            raise ValueError("snapshot is None; give a path for it when making the guard")
        with self._regions.held(), self._committing:
            if self._trusted:
                snapshots.save(self._snapshot, self.filter, self._identity(), self._epoch)

    @property
    def history(self) -> list[Stretch]:
        """The rate over time: stretches of questions, each with its false positives."""
        return self._history.read()

    def plot(self, ax: Any = None) -> Any:
        """Draw the rate over the questions so far, beside the expected one; return the axes."""
        return drawn_history(self.history, self.filter.expected_fpr, ax)

    def close(self) -> None:
        """Write the snapshot if there is a place for it, give the lease back, close the store."""
        if self._closed:
            return
        self._closed = True
        if self._mending is not None:
            self._mending.join()
        try:
            if self._snapshot is not None and self._sure():
                self.save()
            self.store.release(self._owner)
        finally:
            self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        s = self.stats
        return (
            f"<tamis.Guard: {type(self.filter).__name__} before {type(self.store).__name__}, "
            f"{s.questions:,} questions, {s.reads_saved:,} reads saved, "
            f"{s.false_positives:,} wasted>"
        )

    # Whether the filter can be trusted now.

    def _sure(self) -> bool:
        """Tell whether a "no" of the filter holds at this moment."""
        if not self._trusted:
            self._mend()
            return False
        if self._holds_lease() and not self.store.shared:
            return True
        return self._follow()

    def _holds_lease(self) -> bool:
        """Tell whether the lease is this guard's, renewing it when half of it is over."""
        left = self._lease_until - now()
        if left > self._seconds / 2:
            return True
        # Once held it is renewed, also after it lapsed; a guard without it asks only to write.
        return self._lease_until > 0 and self._take_lease()

    def _take_lease(self) -> bool:
        start = now()
        if not self.store.lease(self._owner, self._seconds):
            self._lease_until, self._attached = 0.0, False
            return False
        lapsed = start >= self._lease_until
        self._lease_until = start + self._seconds
        if self._epoch:
            if lapsed:
                # Another may have written in the meantime, with an index of its own.
                with self._regions.held(), self._committing:
                    self._attach()
            # Also while the lease lasted: a server that crashed may have lost its latest writes.
            self._trusted = self._trusted and self._follow()
        return True

    def _need_lease(self) -> None:
        if not self._holds_lease() and not self._take_lease():
            raise LeaseError(
                "another guard holds the store's lease, so this one cannot write; close the "
                f"other, or wait until it was silent for its lease ({self._seconds:g} s if alike)"
            )

    def _follow(self) -> bool:
        """Bring the filter to the store's epoch by what changed since its own."""
        if self.store.epoch() == self._epoch:
            return True
        with self._regions.held(), self._committing:
            return self._replay(None)

    def _replay(self, until: str | None) -> bool:
        changes = self.store.changes(self._epoch, until)
        if changes is None:
            return self._distrust("the store changed, and its journal does not say how")
        try:
            if changes.added:
                # The index has these hashes already, and the filter has not.
                before = Before(self._remote, self._hashes(changes.added))
                with self._changing:
                    insert(self.filter, changes.added, before if self._attached else None)
            self._remove(changes.removed)
        except (CapacityError, TypeError) as error:
            return self._distrust(f"the filter cannot follow the store: {error}")
        self._epoch = changes.epoch
        return True

    def _moved(self, before: str, after: str) -> None:
        """Take note of an own commit; of others' before it first."""
        if before == self._epoch or self._replay(before):
            self._epoch = after

    def _distrust(self, reason: str) -> bool:
        if self._trusted:
            _log.warning("every question goes to the store until the filter is rebuilt: %s", reason)
        self._trusted = False
        self._mend()
        return False

    def _mend(self) -> None:
        """Start to rebuild in the background, unless that is going on or failed just now."""
        at = now()
        with self._changing:
            busy = self._mending is not None and self._mending.is_alive()
            if busy or self._closed or at < self._mend_after:
                return
            self._mend_after = at + self._mend_pause
            self._mend_pause = min(2 * self._mend_pause, 60.0)
            self._mending = threading.Thread(target=self._rebuild_or_log, daemon=True)
            self._mending.start()

    def _rebuild_or_log(self) -> None:
        try:
            self.rebuild()
        except Exception:
            _log.exception("the filter could not be rebuilt; questions go to the store")

    # The filter.

    def _hashes(self, keys: Sequence[Any]) -> Hashes:
        secret: dict[str, Any] = (
            {"seed": self.filter.seed} if self._key is None else {"key": self._key}
        )
        hashes: Hashes = of_each_kind(lambda some: hash_keys(some, **secret), keys)
        return hashes

    def _touched(self, hashes: Hashes) -> list[int] | None:
        # Where others write, a write may have to replay their changes anywhere: it takes all.
        return None if self.store.shared else self._regions.of(hashes)

    def _maybe(self, keys: Sequence[Any]) -> list[int]:
        """Return the places of the keys that the filter does not deny."""
        places: list[int] = np.flatnonzero(of_each_kind(self.filter.contains, keys)).tolist()
        return places

    def _absent(self, keys: list[Plain]) -> list[int]:
        """Return the places of the keys that the filter does not count yet."""
        maybe = self._maybe(keys)
        values = self.store.get_many([keys[i] for i in maybe])
        there = {i for i, value in zip(maybe, values, strict=True) if value is not None}
        return [i for i in range(len(keys)) if i not in there]

    def _insert(self, keys: list[Plain], hashes: Hashes) -> None:
        with self._changing:
            insert(self.filter, keys, self._remote)
            self._remote.began(hashes)

    def _remove(self, keys: list[Any]) -> None:
        if not self.filter.deletes:
            return
        remote = (self._remote,) if adapts(self.filter) and self._attached else ()
        with self._changing:
            for key in keys:
                # A filter that grew since the key left the store has left it behind already.
                with suppress(KeyError):
                    self.filter.remove(key, *remote)

    def _learn(self, keys: list[Any], hashes: Hashes, counts: list[int]) -> None:
        """Feed false positives back, unless a write came between the answer and now."""
        if not (adapts(self.filter) and self._holds_lease() and self._attached):
            return
        allowed = self._limit.take(len(keys))
        regions = self._regions.of(hashes[:allowed])
        with self._regions.held(self._around(regions)), self._changing:
            still = [
                i
                for i, (count, then) in enumerate(
                    zip(self._regions.counts(regions), counts[:allowed], strict=True)
                )
                if count == then
            ]
            fixed = 0
            if still and self._trusted:
                fixed = int(np.sum(self._adapt([keys[i] for i in still])))
        self._tally.count(adaptations=fixed, adaptations_skipped=len(keys) - fixed)

    def _adapt(self, keys: list[Any]) -> Any:
        return of_each_kind(lambda some: self.filter.adapt_many(some, self._remote), keys)

    def _around(self, regions: list[int]) -> list[int] | None:
        """Return the regions that an adaptation may touch.

        A quotient's run may reach over the edge of its region; other filters move keys anywhere.
        """
        few = self.filter.capacity < REGIONS * 256
        if few or not isinstance(self.filter, AdaptiveQuotient):
            return None
        near = {region + step for region in regions for step in (-1, 0, 1)}
        return [region for region in near if 0 <= region < REGIONS]

    def _answered(self, questions: int, saved: int, found: int, wrong: list[int]) -> None:
        """Count answers, the false positives by a word of their hash.

        Says so when the rate of the latest questions leaves its bound, and when it is back.
        """
        self._tally.count(
            questions=questions,
            reads_saved=saved,
            true_positives=found,
            false_positives=len(wrong),
        )
        self._tally.repeat(wrong)
        self._history.saw(questions, saved + len(wrong), len(wrong))
        window = self._watch.saw(saved, wrong, lambda: self.filter.expected_fpr)
        if window is None:
            return
        if self._on_rate is not None:
            self._on_rate(window)
            return
        _log.warning(
            "false positives are %s: %.3g observed (%.3g to %.3g), %.3g expected",
            "more than expected" if self._watch.above else "as expected again",
            window.observed_fpr,
            *window.interval,
            window.expected_fpr,
        )

    # The store's notes and the snapshot.

    def _secret(self, key: bytes | None) -> bytes | None:
        """Return the filter's key: the one given, or the one that the store keeps."""
        if self.filter.seed is not None:
            if key is not None:
                raise ValueError("key is given, but the filter has a seed and no secret key")
            return None
        if key is None:
            key = self.store.note("key")
        if key is None:
            raise ValueError("key is None; the filter has a secret key, and the store keeps none")
        from_bytes(self.filter.to_bytes(), key=key)  # IncompatibleError if it is another
        return self.store.note("key", key)

    def _identity(self) -> bytes:
        known = self.store.note("identity")
        return known or self.store.note("identity", secrets.token_bytes(16)) or b""

    def _attach(self) -> None:
        """Let the store keep its index with this filter's hash."""
        if self._key is not None:
            name = b"key " + hashlib.blake2b(self._key, digest_size=16).digest()
        else:
            name = b"seed %d" % self.filter.seed
        self.store.attach(self._owner, self._hashes, name)
        self._attached = True

    def _restore(self) -> bool:
        """Take the filter from the snapshot if it is whole and of the store's epoch or history."""
        if self._snapshot is None:
            return False
        try:
            filter, store, epoch = snapshots.load(self._snapshot, self._key)
        except FileNotFoundError:
            return False
        except (OSError, ValueError) as error:
            _log.warning("the snapshot is of no use: %s", error)
            return False
        if type(filter) is not type(self.filter) or store != self._identity():
            _log.warning("the snapshot is of another filter or store, and is not used")
            return False
        self.filter, self._epoch, self._trusted = filter, epoch, True
        if self._holds_lease():
            self._attach()
        with self._regions.held(), self._committing:
            changes = self.store.changes(epoch)
            self._trusted = changes is not None and self._replay(None)
        return self._trusted
