"""Many filters under one memory budget.

* `collection`: `Collection`, the filters of many sets; `description`: its read-only properties
* `build`: builds, merges and opens collections; `origin`: pickles, which have the path
* `storage`: full filters in a file, by name
* `memory`: the filters in memory, and their changes: `prefixes` of the filters,
  `prefix_allocation`, how long they are, and `allocation_inputs`, such as the utility of each set
* `runs`: `Runs`, the filters of an LSM-tree's runs; `run_filters`: one run, and its file
"""

from tamis.collection.allocation_inputs import Utility
from tamis.collection.collection import Collection
from tamis.collection.runs import Runs
from tamis.collection.storage import Names, Sets

__all__ = ["Collection", "Names", "Runs", "Sets", "Utility"]
