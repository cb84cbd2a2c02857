"""Hashes as the integers of SQL, which are signed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tamis.stores.contract import HashRows

SIGN = 1 << 63
"""A word of a hash is stored less this, which keeps the order."""


def to_signed(hashes: HashRows) -> Any:
    """Return the two signed words of each hash, as an array."""
    return (hashes ^ np.uint64(SIGN)).view(np.int64)


def from_signed(rows: Sequence[Sequence[int]]) -> HashRows:
    """Return the hashes of rows of two signed words."""
    words = np.array(rows, dtype=np.int64).reshape(-1, 2)
    return words.view(np.uint64) ^ np.uint64(SIGN)
