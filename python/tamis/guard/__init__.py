"""`tamis.Guard`: a filter in front of a store.

The store is the truth; the filter says which questions need not reach it. What keeps the filter
from ever denying a key that is there:

- *Order.* A put writes the filter first and the store second, a delete the other way round; one
  lock per region of the hash space orders them, and adaptations, among the threads. Whatever is
  cut off half-way leaves a false positive.
- *Epochs.* Each change of the store's set of keys gives it a new epoch. A filter belongs to one
  epoch; a guard whose filter belongs to another reads what changed, or fills the filter anew, and
  until then asks the store every question.
- *The lease.* One guard at a time may write. While its lease lasts nobody else changes the set, so
  its filter's "no" needs no look at the store. Without the lease, or where others write to the
  table without a guard, the epoch is asked before each "no" (once per batch).

`guard.py` is the class; `regions.py` orders threads and is the filter's remote, `filling.py` fills
filters from stores, `snapshot.py` keeps them between runs, `limit.py` holds them back.
"""

from tamis.guard.guard import Guard

__all__ = ["Guard"]
