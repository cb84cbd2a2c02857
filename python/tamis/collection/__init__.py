"""Many filters under one memory budget.

* `collection`: `Collection`, the filters of many sets; `description`: its read-only properties
* `build`: builds, merges and opens collections; `kind_choice`, `merge`, `origin` (pickles)
* `storage`: full filters in a file, by name
* `memory`: the state of a collection in memory, and its changes: `prefixes` of the filters,
  `prefix_allocation` and `growth`, how long they are, and `allocation_inputs`
* `utility`: how often each set is queried
* `runs`: `Runs`, the filters of an LSM-tree's runs; `run_filters`, `runs_file`
"""

from tamis.collection.allocation_inputs import Utility
from tamis.collection.collection import Collection
from tamis.collection.runs import Runs
from tamis.collection.storage import Names, Sets

__all__ = ["Collection", "Names", "Runs", "Sets", "Utility"]
