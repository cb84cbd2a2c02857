"""A store in memory that fails, waits and forgets as a test says, and counts what it is asked."""

import threading
from collections import Counter

from tamis import stores
from tamis.errors import LeaseError, StoreError
from tamis.stores.contract import Changes


class Faulty(stores.Memory):
    """A journal, so that guards can follow it, and these faults:

    - ``down``: every call raises `StoreError`;
    - ``breaks``: the next write raises it "before" it is carried out, "after" that, or "late": it
      is carried out only when `arrive` is called, as if it were still in a connection's buffer;
    - ``hold``: writes wait for this event before they are carried out.
    """

    def __init__(self, shared=False):
        super().__init__()
        self.shared = shared
        self.down, self.breaks, self.hold = False, "", None
        self.asked = Counter()
        self.waiting = threading.Event()
        self._journal = [(self._epoch, [], [])]
        self._late = []

    def __getattribute__(self, name):
        if not name.startswith("_") and callable(getattr(stores.Memory, name, None)):
            object.__getattribute__(self, "asked")[name] += 1
            if object.__getattribute__(self, "down"):
                raise StoreError("the store is down")
        return object.__getattribute__(self, name)

    def put_many(self, keys, values, owner):
        return self._write(lambda: stores.Memory.put_many(self, keys, values, owner), keys, True)

    def delete_many(self, keys, owner):
        return self._write(lambda: stores.Memory.delete_many(self, keys, owner), keys, False)

    def runs(self, ranges):
        return [stores.Memory.run(self, lo, hi) for lo, hi in ranges]

    def write(self, items=(), removed=()):
        """Write without a guard, as others may to a shared table."""
        holder, self._lease.holder = self._lease.holder, "stranger"
        try:
            if items:
                self.put_many(list(items), [b"theirs"] * len(items), "stranger")
            if removed:
                self.delete_many(list(removed), "stranger")
        finally:
            self._lease.holder = holder

    def arrive(self):
        """Carry out what was late; return how many writes the store refused."""
        refused = 0
        for write in self._late:
            try:
                write()
            except LeaseError:
                refused += 1
        self._late.clear()
        return refused

    def changes(self, since, until=None, limit=None):
        with self._lock:
            epochs = [epoch for epoch, _, _ in self._journal]
            if since not in epochs:
                return None
            stop = len(epochs) if until is None else epochs.index(until) + 1
            rows = self._journal[epochs.index(since) + 1 : stop]
            more = limit is not None and len(rows) > limit
            rows = rows[:limit] if more else rows
            added = [key for _, keys, _ in rows for key in keys]
            removed = [key for _, _, keys in rows for key in keys]
            self.asked["changes of"] = max(self.asked["changes of"], len(rows))
            return Changes(rows[-1][0] if rows else since, added, removed, more)

    def _write(self, write, keys, adds):
        if self.hold is not None:
            self.waiting.set()
            self.hold.wait()
        breaks, self.breaks = self.breaks, ""
        if breaks == "late":
            self._late.append(lambda: self._carry_out(write, keys, adds))
        elif breaks != "before":
            commit = self._carry_out(write, keys, adds)
        if breaks:
            raise StoreError("the connection broke")
        return commit

    def _carry_out(self, write, keys, adds):
        with self._lock:
            commit = write()
            if commit.before != commit.after:
                changed = [k for k, was in zip(keys, commit.existed, strict=True) if was != adds]
                self._journal.append((commit.after, changed * adds, changed * (not adds)))
            return commit
