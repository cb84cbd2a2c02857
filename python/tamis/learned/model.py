"""`tamis.learned.Model`: a trained classifier that scores natively and is saved like a filter."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis._saved import Saved

Reads = Literal["text", "table"]


class Model(Saved):
    """A classifier that scores keys, or rows of features, from 0 to 1.

    Created by `tamis.learned.train`. A model is plain data (thresholds, levels of categories,
    weights or trees): scoring does not need the library that trained it, and loading does not run
    code. The same input has the same score on every machine.

    >>> from tamis.learned import train
    >>> model = train([f"user-{i}" for i in range(500)], range(500), kind="logistic")
    >>> model.reads, [round(float(score)) for score in model.scores(["user-7777", "7777"])]
    ('text', [1, 0])
    """

    @property
    def reads(self) -> Reads:
        """The input: the text of keys, or the columns of a table."""
        return "text" if _native.model_shape(self._kernel)[0] else "table"

    def scores(self, rows: Any) -> npt.NDArray[np.float32]:
        """Return the score of each row: of keys as text, or of a table of features.

        Text is any column of keys; integers are read as decimal digits. A table is a NumPy array of
        numbers or any object that implements the Arrow C data interface. Its columns are matched by
        name if it and the training table have names, otherwise by position.
        """
        return _native.model_scores(self._kernel, rows)

    def __repr__(self) -> str:
        return (
            f"<tamis.learned.Model of {self.reads}: trained on {len(self):,} rows, "
            f"{self.size_in_bits:,} bits>"
        )
