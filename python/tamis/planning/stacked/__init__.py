"""Stacks: their predicted metrics, and the search for the best one.

`metrics` predicts rates and sizes from the rates of the layers; `frequencies` is the interface of a
workload to the search; `goal` has the objective and the constraints. `equal_rates`,
`whole_lengths` and `exact` find the best stack for a number of negatives, and `sweep` the best
number. `varied_rates` and `fractional_lengths` improve the result. `realize` turns a stack into a
plan. `lifetime` plans adaptive stacks.
"""
