"""Stable learned filters: one stable filter per group of scores.

`groups` is the plan and the entry point `plan_stable`; `group_search` finds the best filters of
given groups; `scores` also finds the groups; `group_drift` compares a filter in use with its plan.
"""
