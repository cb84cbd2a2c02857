"""A store in memory that fails, waits and forgets as a test says, and counts what it is asked."""

import threading
from collections import Counter

from tamis import stores
from tamis.errors import LeaseError, StoreError
from tamis.stores.base import Changes, Commit


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
        self._journal = [(self._position, [], [])]
        self._late, self._told = [], False

    def __getattribute__(self, name):
        if not name.startswith("_") and callable(getattr(stores.Memory, name, None)):
            object.__getattribute__(self, "asked")[name] += 1
            if object.__getattribute__(self, "down"):
                raise StoreError("the store is down")
        return object.__getattribute__(self, name)

    def put_many(self, keys, values, owner, since):
        def put():
            return stores.Memory.put_many(self, keys, values, owner, since)

        return self._write(put, keys, True, since)

    def delete_many(self, keys, owner, since):
        def delete():
            return stores.Memory.delete_many(self, keys, owner, since)

        return self._write(delete, keys, False, since)

    def runs(self, ranges):
        return [stores.Memory.run(self, lo, hi) for lo, hi in ranges]

    def write(self, items=(), removed=()):
        """Write without a guard, as others may to a shared table."""
        holder, self._lease.holder = self._lease.holder, "stranger"
        try:
            if items:
                self.put_many(list(items), [b"theirs"] * len(items), "stranger", "")
            if removed:
                self.delete_many(list(removed), "stranger", "")
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

    def changes(self, since, limit=None):
        with self._lock:
            positions = [position for position, _, _ in self._journal]
            if since not in positions:
                return None
            rows = self._journal[positions.index(since) + 1 :]
            more = limit is not None and len(rows) > limit
            rows = rows[:limit] if more else rows
            net = Counter()
            for _, added, removed in rows:
                net.update(added)
                net.subtract(removed)
            added = [key for key, change in net.items() if change > 0]
            removed = [key for key, change in net.items() if change < 0]
            self.asked["changes of"] = max(self.asked["changes of"], len(rows))
            return Changes(rows[-1][0] if rows else since, added, removed, more)

    def _check_lease(self, owner):
        if not self.shared:
            super()._check_lease(owner)

    def _write(self, write, keys, adds, since):
        if self.hold is not None:
            self.waiting.set()
            self.hold.wait()
        breaks, self.breaks = self.breaks, ""
        if breaks == "late":
            self._late.append(lambda: self._carry_out(write, keys, adds, since))
        elif breaks != "before":
            commit = self._carry_out(write, keys, adds, since)
        if breaks:
            raise StoreError("the connection broke")
        return commit

    def _carry_out(self, write, keys, adds, since):
        with self._lock:
            before, commit = self._position, write()
            if before != self._position:
                changed = [k for k, was in zip(keys, commit.existed, strict=True) if was != adds]
                self._journal.append((self._position, changed * adds, changed * (not adds)))
            # Every other time the store leaves it to the guard to read the changes.
            self._told = not self._told
            return Commit(commit.existed, Faulty.changes(self, since) if self._told else None)
