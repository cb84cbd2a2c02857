"""Stacks: their predicted metrics, and the search for the best one.

`metrics` predicts rates and sizes from the rates of the layers; `frequencies` is what the search
needs from a workload; `goal` is what is minimized; `equal`, `varied`, `lengths` and `exact` find
the best stack for a number of negatives; `sweep` finds the best number; `realize` makes a plan of
a stack; `lifetime` plans adaptive stacks.
"""
