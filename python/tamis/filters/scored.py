"""The common base of filters behind a classifier."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis._types import Key, Keys
from tamis.filters.contract import Filter
from tamis.learned.classifier import Model, Scorer


class Scored(Filter):
    """A filter that gets a score for each key from a classifier."""

    _scorer: Model | Scorer

    @property
    def _model(self) -> _native.Handle | None:
        """The native classifier; None if an external one is used."""
        raise NotImplementedError

    @property
    def model(self) -> Any:
        """The classifier: a `tamis.learned.Model`, or the object that was passed."""
        classifier = self._resolved_scorer()
        return classifier.classifier if isinstance(classifier, Scorer) else classifier

    def contains(self, keys: Keys, features: Any = None) -> npt.NDArray[np.bool_]:
        """Return for each key whether it may be in the set; ``features`` has one row per key."""
        raise NotImplementedError

    def __contains__(self, key: Key, /) -> bool:
        if isinstance(self._resolved_scorer(), Model):
            return self._contains_one(key)
        return bool(self.contains([key])[0])  # type: ignore[arg-type]

    def _contains_one(self, key: Key) -> bool:
        """Look up one key, scored by its text by the native model."""
        raise NotImplementedError

    def copy(self) -> Self:
        """Return an independent copy."""
        twin = super().copy()
        twin._scorer = self._resolved_scorer()
        return twin

    def to_bytes(self) -> bytes:
        """Return the filter as bytes, as `save` writes them."""
        self._check_saveable()
        return super().to_bytes()

    def _write(self, descriptor: int) -> None:
        self._check_saveable()
        super()._write(descriptor)

    def _check_saveable(self) -> None:
        classifier = self._resolved_scorer()
        if isinstance(classifier, Scorer):
            raise TypeError(
                f"model is a {type(classifier.classifier).__name__}, which cannot be saved, "
                "because loading it would run code; use a model from tamis.learned.train"
            )

    def _resolved_scorer(self) -> Model | Scorer:
        if not hasattr(self, "_scorer"):
            kept = self._model
            assert kept is not None  # every file has one
            self._scorer = Model._of(kept)
        return self._scorer


def with_scores(
    classifier: Model | Scorer, keys: Any, features: Any
) -> tuple[Keys, npt.NDArray[np.float32]]:
    """Return keys that can be iterated again, and their scores."""
    if features is None and isinstance(classifier, Model) and classifier.reads == "table":
        raise TypeError("features is missing: the model reads a table with one row per key")
    if not hasattr(keys, "__len__") and not hasattr(keys, "__arrow_c_stream__"):
        keys = list(keys)
    return keys, classifier.scores(keys if features is None else features)
