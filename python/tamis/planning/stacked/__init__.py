"""Stacks: their predicted metrics, and the search for the best one.

`metrics` predicts, from the rates of the layers; `curve` is what the search asks of a workload;
`goal` is what is wanted; `equal`, `varied`, `lengths` and `exact` find the best stack for one
number of negatives; `sweep` finds the best number.
"""
