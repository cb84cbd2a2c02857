"""Whatever gives scores: a `Model`, or another's classifier with ``predict_proba``."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis.learned.model import Model


@runtime_checkable
class Classifier(Protocol):
    """What scikit-learn, LightGBM, CatBoost and others offer: probabilities per class."""

    def predict_proba(self, rows: Any, /) -> Any:
        """Return for each row the probabilities of its classes, that of members last."""
        ...


class Scorer:
    """Another's classifier as learned filters ask it; its answers are checked each time.

    >>> class Even:
    ...     def predict_proba(self, rows):
    ...         share = 1.0 - np.asarray(rows) % 2
    ...         return np.stack([1 - share, share], axis=1)
    >>> Scorer(Even()).scores([1, 2, 4])
    array([0., 1., 1.], dtype=float32)
    """

    size_in_bits = 0
    """The memory of a foreign classifier is unknown here, and not counted."""

    def __init__(self, classifier: Classifier) -> None:
        self.classifier = classifier

    def scores(self, rows: Any) -> npt.NDArray[np.float32]:
        """Return the probability that each row is a member; ValueError where it is none."""
        found = np.asarray(self.classifier.predict_proba(rows))
        name = f"{type(self.classifier).__name__}.predict_proba"
        if found.ndim == 2 and found.shape[1] in (1, 2):
            found = found[:, -1]
        if found.ndim != 1:
            raise ValueError(
                f"{name} returned an array of shape {found.shape}; one score per row, or the "
                "probabilities of two classes, are wanted"
            )
        count = _length(rows)
        if len(found) != count:
            raise ValueError(f"{name} returned {len(found)} scores for {count} rows")
        scores = found.astype(np.float32)
        wrong = np.flatnonzero(~((scores >= 0) & (scores <= 1)))
        if wrong.size:
            first = wrong[0]
            raise ValueError(
                f"{name} returned {found[first]} for row {first}; scores from 0 to 1 are wanted"
            )
        return scores


def scorer(model: Any) -> Model | Scorer:
    """Return what scores with this model, or TypeError if it is none.

    >>> scorer("forest")
    Traceback (most recent call last):
    ...
    TypeError: model is of type str; a tamis.learned.Model or an object with predict_proba is wanted
    """
    if isinstance(model, (Model, Scorer)):
        return model
    if isinstance(model, Classifier):
        return Scorer(model)
    raise TypeError(
        f"model is of type {type(model).__name__}; a tamis.learned.Model or an object with "
        "predict_proba is wanted"
    )


def _length(rows: Any) -> int:
    return len(rows) if hasattr(rows, "__len__") else len(_native.Table(rows))
