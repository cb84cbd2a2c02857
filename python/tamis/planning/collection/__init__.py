"""Many filters under one budget: how many bits of each to keep in memory.

* `allocation`: the problem and its solution, `plan_collection`
* `curves`: how the rate of a truncated filter falls with the bits kept
* `prices`: the exact optimum, by a search for one price per bit
* `baselines`: the methods of Mersy, Wang, Sintos, Krishnan 2024, for comparison
* `reads`: the optimum if the rest of each filter is in a file
* `sliced`: bit-sliced filters, and when they are better
* `run_budgets`: one budget for the runs of an LSM-tree
"""
