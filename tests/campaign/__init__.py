"""The fault campaign: guards under load while clients, servers, networks, clocks and disks fail.

A supervisor tells worker processes what to do, stamps when it asked and when they answered, and
causes the faults. What it wrote down, the history, is checked afterwards: no guard may have denied
a key that was stored. ``PYTHONPATH=tests:tests/helpers python -m campaign --help`` runs it.
"""
