"""Stacks: their predicted rates and sizes, and the search for the best one.

`predictions` has the formulas for rates and sizes, from the rates of the layers; `frequencies` is
the interface of a workload to the search; `goal` has the objective and the constraints.
`any_rate`, `integer_lengths` and `exact` find the best stack for a number of negatives, and `sweep`
the best number. `any_rate` and `fractional_lengths` then vary its layers. `realize` turns a stack
into a plan. `lifetime` plans adaptive stacks.
"""
