"""`tamis.Guard` and `tamis.AsyncGuard`: a filter in front of a store.

The store is the source of truth; the filter says which queries need not reach it. Three rules keep
the filter from ever denying a key that the store has:

- *Order.* A put writes the filter first and the store second; a delete, the other way round. One
  lock per region of the hash space orders puts, deletes and adaptations among threads. A crash
  between the two steps leaves a false positive, never a false negative.
- *Epochs.* Each change of the store's set of keys gives the store a new epoch. A filter matches one
  epoch. A guard whose filter matches another one replays the changes or rebuilds the filter, and
  until then sends every query to the store.
- *The lease.* Only one guard at a time may write. While it holds the lease nobody else changes the
  set of keys, so a "no" of its filter needs no access to the store. A guard without the lease, or
  on a table that others write to directly, looks at the store before each "no" (once per batch), or
  a few times per ``max_staleness``.

The proof is in docs/guard.md. `guard.py` answers queries and writes, most of them in native code
(`src/python/gate.rs`). `replica.py` has the filter and the epoch that it matches, and gets changes
into it; `standing.py` knows until when its "no" counts; `trust.py` takes the lease, and replays or
rebuilds. `following.py` and `background.py` do that in threads, and `sharing.py` shares the
snapshot among processes. `regions.py` has the locks and the filter's view of the store's hashes,
`adapting.py` tells the filter of false positives, `choosing.py` chooses filters, `filling.py`
builds them from stores, `identity.py` and `snapshot.py` match them to stores and keep them between
runs, `statistics.py` counts and compares rates, `limit.py` limits adaptations and `logs.py` log
lines. `asynchronous.py` is the guard for asyncio. `page.py` serves a page, from what `sampling.py`
keeps for it.
"""

from tamis.guard.asynchronous import AsyncGuard
from tamis.guard.guard import Guard

__all__ = ["AsyncGuard", "Guard"]
