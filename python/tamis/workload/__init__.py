"""What is known about the queries, and how it drifts.

* `workload`: `tamis.Workload`, which absent keys are queried and how often
* `drift`: how far a workload moved, and what that does to a plan
* `counts`: values and their counts, in one pass and bounded memory
* `unseen`: what fraction of later queries is for values not in a log, and smoothed counts
"""

from tamis.workload.drift import Drift
from tamis.workload.workload import Workload

__all__ = ["Drift", "Workload"]
