"""`tamis.StaticFunction`: exact values for given keys."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis._saved import Saved
from tamis._types import Keys
from tamis.planning import ribbon as planning


class StaticFunction(_native.Function, Saved):
    """A function from its keys to integers of 1 to 32 bits, at 1.01 bits per key and bit.

    It does not hold the keys: of a key it was not built from it returns any value. So it is no
    filter, and has no ``in``.

    >>> f = StaticFunction.build(["ada", "grace", "edsger"], [3, 0, 2])
    >>> f["ada"], f.bits
    (3, 2)
    >>> f.get(["grace", "edsger"])
    array([0, 2], dtype=uint32)

    References: Dillinger, Hübschle-Schneider, Sanders, Walzer 2022.
    """

    _kind = "function"

    # Without these, `in` and `iter` would ask for the values of 0, 1, 2 and so on, for ever.
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
        """Build the function that has these values, one per key, of as many bits as they need.

        A key may come again with the same value; with another one, that is a `BuildError`.
        """
        array = _checked(values, bits)
        if bits is None:
            bits = max(1, int(array.max(initial=0)).bit_length())
        assigned = _native.Assigned(keys, array, seed, key)
        size = planning.size(len(assigned), fingerprint_bits=bits)
        return cls._of(cls._build(size, assigned))

    def _describe(self) -> str:
        return f"{self.bits}-bit values"


def _checked(values: Any, bits: int | None) -> npt.NDArray[np.uint32]:
    """Return the values as the kernel takes them, or say why not."""
    if bits is not None and not 1 <= bits <= planning.MOST_COLUMNS:
        raise ValueError(f"bits is {bits}; from 1 to {planning.MOST_COLUMNS} are possible")
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"values has {array.ndim} dimensions; one value per key is wanted")
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"values is of type {array.dtype}; integers are wanted")
    most = 2 ** (bits or planning.MOST_COLUMNS) - 1
    wrong = np.flatnonzero((array < 0) | (array > most))
    if wrong.size:
        at = int(wrong[0])
        raise ValueError(f"values[{at}] is {array[at]}; from 0 to {most} are possible")
    return np.ascontiguousarray(array, dtype=np.uint32)
