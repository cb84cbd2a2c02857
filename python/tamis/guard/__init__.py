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
  on a table that others write to directly, checks the store for changes before each "no" (once per
  batch), or a few times per ``max_staleness``.

The proof is in docs/guard.md. `guard.py` answers queries and writes, most of them in native code
(`src/python/gate.rs`). `replica.py` holds the filter and the epoch that it matches, and applies
changes to it; `freshness.py` holds the deadlines up to which a "no" counts; `trust.py` takes the
lease, and replays or rebuilds. `follower.py` and `background.py` do that in threads, and
`sharer.py` shares the snapshot among processes. `regions.py` has the locks and the filter's view of
the store's hashes, `adapter.py` feeds false positives back to the filter, at a limited rate,
`filter_choice.py` chooses the filter and `construction.py` builds it from the store, `identity.py`
and `snapshot.py` match it to the store and keep it between runs, `statistics.py` counts and
compares rates, `log.py` limits log lines. `asynchronous.py` is the guard for asyncio. `page.py`
serves a page with the data of `page_data.py`.
"""

from tamis.guard.asynchronous import AsyncGuard
from tamis.guard.guard import Guard

__all__ = ["AsyncGuard", "Guard"]
