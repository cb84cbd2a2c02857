"""`tamis.learned.Model`: a trained classifier that scores natively and is saved like a filter."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis._saved import Saved

Reads = Literal["text", "table"]


class Model(Saved):
    """A classifier: the score of a key, or of a row of features, as a number from 0 to 1.

    Made by `tamis.learned.train`. It is plain data (thresholds, categories' levels, weights or
    trees), so that scoring needs none of the libraries that trained it, and loading runs no code
    of others. The same input has the same score on every machine.

    >>> from tamis.learned import train
    >>> model = train([f"user-{i}" for i in range(500)], range(500), kind="logistic")
    >>> model.reads, [round(float(score)) for score in model.scores(["user-7777", "7777"])]
    ('text', [1, 0])
    """

    @property
    def reads(self) -> Reads:
        """What it scores: the text of keys, or the columns of a table."""
        return "text" if _native.model_shape(self._kernel)[0] else "table"

    def scores(self, rows: Any) -> npt.NDArray[np.float32]:
        """Return the score of each row: of keys as text, or of a table of features.

        Text is any column of keys; an integer is read as its decimal digits. A table is a NumPy
        array of numbers or anything that speaks Arrow; its columns are matched by name where it
        and the training table have names, else by position.
        """
        return _native.model_scores(self._kernel, rows)

    def __repr__(self) -> str:
        return (
            f"<tamis.learned.Model of {self.reads}: trained on {len(self):,} rows, "
            f"{self.size_in_bits:,} bits>"
        )
