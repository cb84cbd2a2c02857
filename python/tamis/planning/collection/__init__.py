"""Many filters under one budget: how many bits each keeps in memory.

* `allocation`: the problem and its answer, `plan_collection`
* `curves`: how the rate of a truncated filter falls with the bits kept
* `prices`: the exact optimum, by a search for one price per bit
* `baselines`: the methods of Mersy, Wang, Sintos, Krishnan 2024, to compare with
* `text`: documents as signatures, bit-sliced
"""
