"""Sizes and predicted rates: pure functions of numbers, one module per structure.

Nothing here imports compiled code of tamis, and no kernel chooses its own size: what is decided
here is what `tamis.filters` asks the kernels for.
"""
