"""`tamis.learned.Model`: a trained classifier that scores natively and is saved like a filter."""

from __future__ import annotations

from typing import Literal

from tamis import _native
from tamis._saved import Saved

Reads = Literal["text", "table"]


class Model(_native.Classifier, Saved):
    """A classifier that scores keys, or rows of features, from 0 to 1.

    Created by `tamis.learned.train`. A model is plain data (thresholds, levels of categories,
    weights or trees): scoring does not need the library that trained it, and loading does not run
    code. The same input has the same score on every machine.

    >>> from tamis.learned import train
    >>> model = train([f"user-{i}" for i in range(500)], range(500), kind="logistic")
    >>> model.reads, [round(float(score)) for score in model.scores(["user-7777", "7777"])]
    ('text', [1, 0])
    """

    _kind = "model"

    @property
    def reads(self) -> Reads:
        """The input: the text of keys, or the columns of a table."""
        return "text" if self._reads_text else "table"

    def _describe(self) -> str:
        return f"a model of {self.reads}"

    def __repr__(self) -> str:
        return (
            f"<tamis.learned.Model of {self.reads}: trained on {len(self):,} rows, "
            f"{self.size_in_bits:,} bits>"
        )
