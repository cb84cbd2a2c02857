"""Sources of scores: a `Model`, or any classifier with ``predict_proba``."""

from __future__ import annotations

from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

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


@runtime_checkable
class Classifier(Protocol):
    """The interface of scikit-learn, LightGBM, CatBoost and others: probabilities per class."""

    def predict_proba(self, rows: Any, /) -> Any:
        """Return the class probabilities of each row; members are the last class."""
        ...


class Scorer:
    """An external classifier, as learned filters use it; its scores are validated on each call.

    >>> class Even:
    ...     def predict_proba(self, rows):
    ...         share = 1.0 - np.asarray(rows) % 2
    ...         return np.stack([1 - share, share], axis=1)
    >>> Scorer(Even()).scores([1, 2, 4])
    array([0., 1., 1.], dtype=float32)
    """

    size_in_bits = 0
    """The memory of an external classifier is unknown and not counted."""

    def __init__(self, classifier: Classifier) -> None:
        self.classifier = classifier

    def scores(self, rows: Any) -> npt.NDArray[np.float32]:
        """Return the probability that each row is a member; ValueError if one is out of range."""
        returned = np.asarray(self.classifier.predict_proba(rows))
        name = f"{type(self.classifier).__name__}.predict_proba"
        if returned.ndim == 2 and returned.shape[1] in (1, 2):
            returned = returned[:, -1]
        if returned.ndim != 1:
            raise ValueError(
                f"{name} must return one score per row or the probabilities of two classes, not "
                f"an array of shape {returned.shape}"
            )
        count = _length(rows)
        if len(returned) != count:
            raise ValueError(f"{name} must return {count} scores, one per row, not {len(returned)}")
        scores = returned.astype(np.float32)
        wrong = np.flatnonzero(~((scores >= 0) & (scores <= 1)))
        if wrong.size:
            first = wrong[0]
            raise ValueError(
                f"{name} must return scores from 0 to 1, not {returned[first]} (row {first})"
            )
        return scores


def scorer(model: Any) -> Model | Scorer:
    """Return the `Model`, or a `Scorer` for any other classifier; TypeError if it is neither.

    >>> scorer("forest")
    Traceback (most recent call last):
    ...
    TypeError: model must be a tamis.learned.Model or have predict_proba, not str
    """
    if isinstance(model, (Model, Scorer)):
        return model
    if isinstance(model, Classifier):
        return Scorer(model)
    raise TypeError(
        f"model must be a tamis.learned.Model or have predict_proba, not {type(model).__name__}"
    )


def _length(rows: Any) -> int:
    return len(rows) if hasattr(rows, "__len__") else len(_native.Table(rows))
