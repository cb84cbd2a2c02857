"""What is known about the queries, and how it drifts.

* `workload`: `tamis.Workload`, which absent keys are queried and how often
* `drift`: how far a workload moved, and what that does to a plan
* `counting`: values and their counts, in one pass and bounded memory
"""

from tamis.workload.drift import Drift
from tamis.workload.workload import Workload

__all__ = ["Drift", "Workload"]
