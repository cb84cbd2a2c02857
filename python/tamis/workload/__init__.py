"""The queries that a filter gets: which absent keys, how often, and how they drift.

* `workload`: `tamis.Workload`, which absent keys are queried and how often
* `counts`: counts and costs of values, in one pass and bounded memory
* `unseen`: estimates of the fraction of later queries for unseen values, and smoothed counts
* `drift`: the distance of two workloads, and its effect on a plan
* `file`: workloads saved as Parquet
"""

from tamis.workload.drift import Drift
from tamis.workload.workload import Workload

__all__ = ["Drift", "Workload"]
