"""Many filters under one memory budget.

* `collection`: `Collection`, the filters of many sets
* `storage`: full filters in a file, by name
* `merging`: collections built in parts, and pickles
* `prefixes`: what is in memory
* `utility`: how often each set is queried
* `runs`: `Runs`, the filters of an LSM-tree's runs, for one workload; `run`: one of them, and files
"""

from tamis.collection.collection import Collection
from tamis.collection.runs import Runs
from tamis.collection.storage import Names, Sets
from tamis.collection.utility import Utility

__all__ = ["Collection", "Names", "Runs", "Sets", "Utility"]
