"""What filters behind a classifier share: they ask it, keep it, and refuse to save another's."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis._types import Key, Keys
from tamis.filters.contract import Contract
from tamis.learned.classifier import Scorer
from tamis.learned.model import Model


class Scored(Contract):
    """A filter that asks a classifier for the score of each key."""

    _scorer: Model | Scorer

    @property
    def _model(self) -> _native.Handle | None:
        """The classifier that is kept natively, if it is one of ours."""
        raise NotImplementedError

    @property
    def model(self) -> Any:
        """The classifier: a `tamis.learned.Model`, or the one that was given."""
        asked = self._asked()
        return asked.classifier if isinstance(asked, Scorer) else asked

    def contains(self, keys: Keys, features: Any = None) -> npt.NDArray[np.bool_]:
        """Tell for each key, with its row of features if the model reads those, if it may be in."""
        raise NotImplementedError

    def __contains__(self, key: Key, /) -> bool:
        if isinstance(self._asked(), Model):
            return self._contains_one(key)
        return bool(self.contains([key])[0])  # type: ignore[arg-type]

    def _contains_one(self, key: Key) -> bool:
        """Answer for one key whose text the kept model scores."""
        raise NotImplementedError

    def copy(self) -> Self:
        """Return a filter of its own with the same content."""
        twin = super().copy()
        twin._scorer = self._asked()
        return twin

    def to_bytes(self) -> bytes:
        """Return the filter as the bytes that `save` writes."""
        self._check_own()
        return super().to_bytes()

    def _write(self, descriptor: int) -> None:
        self._check_own()
        super()._write(descriptor)

    def _check_own(self) -> None:
        asked = self._asked()
        if isinstance(asked, Scorer):
            raise TypeError(
                f"model is a {type(asked.classifier).__name__}, which is not saved, since opening "
                "it would run its code; a filter with a model of tamis.learned.train is"
            )

    def _asked(self) -> Model | Scorer:
        if not hasattr(self, "_scorer"):
            kept = self._model
            assert kept is not None  # a file always has one
            self._scorer = Model._of(kept)
        return self._scorer


def with_scores(
    asked: Model | Scorer, keys: Any, features: Any
) -> tuple[Keys, npt.NDArray[np.float32]]:
    """Return keys that can be read once more, and their scores."""
    if features is None and isinstance(asked, Model) and asked.reads == "table":
        raise TypeError("features is missing; the model reads a table, with a row for each key")
    if not hasattr(keys, "__len__") and not hasattr(keys, "__arrow_c_stream__"):
        keys = list(keys)
    return keys, asked.scores(keys if features is None else features)
