"""`tamis.StaticFunction`: exact values for given keys."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis._checks import check_int
from tamis._saved import Saved
from tamis._types import Keys
from tamis.planning import ribbon as planning


class StaticFunction(_native.Function, Saved):
    """A map from keys to integers of 1 to 32 bits, in 1.01 bits per key and bit of a value.

    It does not store the keys, and returns an arbitrary value for any other key. It is not a
    filter, and does not support ``in``.

    >>> f = StaticFunction.build(["ada", "grace", "edsger"], [3, 0, 2])
    >>> f["ada"], f.bits
    (3, 2)
    >>> f.get(["grace", "edsger"])
    array([0, 2], dtype=uint32)

    References: Dillinger, Hübschle-Schneider, Sanders, Walzer 2022.
    """

    _kind = "function"

    # Without these, `in` and `iter` would look up the keys 0, 1, 2 and so on, without end.
    __contains__ = None
    __iter__ = None

    @classmethod
    def build(
        cls,
        keys: Keys,
        values: npt.ArrayLike,
        *,
        bits: int | None = None,
        seed: int = 0,
        key: bytes | None = None,
    ) -> Self:
        """Build a map with one value per key; ``bits`` is by default enough for all values.

        A repeated key must have the same value each time; otherwise `BuildError` is raised.
        """
        if bits is not None:
            bits = check_int("bits", bits, planning.MAX_COLUMNS, minimum=1)
        array = _checked(values, bits)
        if bits is None:
            bits = max(1, int(array.max(initial=0)).bit_length())
        assigned = _native.Assigned(keys, array, seed, key)
        size = planning.size(len(assigned), fingerprint_bits=bits)
        return cls._of(cls._build(size, assigned))

    def _describe(self) -> str:
        return f"{self.bits}-bit values"


def _checked(values: Any, bits: int | None) -> npt.NDArray[np.uint32]:
    """Return the values as an array for the kernel; raise an error if they are not accepted."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"values must have 1 dimension, one value per key, not {array.ndim}")
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"values must be integers, not {array.dtype}")
    largest = 2 ** (bits or planning.MAX_COLUMNS) - 1
    wrong = np.flatnonzero((array < 0) | (array > largest))
    if wrong.size:
        at = int(wrong[0])
        raise ValueError(f"values[{at}] must be from 0 to {largest}, not {array[at]}")
    return np.ascontiguousarray(array, dtype=np.uint32)
