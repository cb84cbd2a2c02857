"""`tamis.Guard` and `tamis.AsyncGuard`: a filter in front of a store.

The store is the source of truth; the filter says which queries need not reach it. Three rules keep
the filter from ever denying a key that the store has:

- *Order.* A put writes the filter first and the store second; a delete, the other way round. A
  crash between the two steps leaves a false positive, never a false negative.
- *Positions.* A filter matches one position of the store, that is, one state of its set of keys. A
  guard whose filter matches another one applies the changes in between or rebuilds the filter, and
  until then sends every query to the store.
- *The lease.* In a store that only guards write, one guard at a time may write. While it holds the
  lease, a "no" of its filter needs no access to the store. A guard without it, or on a table that
  others write to, checks the store for changes before each "no" (once per batch), or a few times
  per ``max_staleness``.

`protocol.py` is where these rules are: a state machine without I/O. `driver.py` carries out what it
says, `background.py` has the threads. `replica.py` has the filter, its locks and its view of the
store's hashes. `sync.py` and `aio.py` are the public classes, whose queries are the same steps.
`opening.py` chooses, checks and builds the filter, `snapshot.py` keeps it between runs,
`statistics.py` counts and logs, `page.py` shows it. The proof is in docs/guard.md.
"""

from tamis.guard.aio import AsyncGuard
from tamis.guard.sync import Guard

__all__ = ["AsyncGuard", "Guard"]
