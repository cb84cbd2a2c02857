"""`tamis.learned.train`: a `Model` from members and non-members."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis._checks import check_int, check_number
from tamis.learned import flat
from tamis.learned.classifier import Model
from tamis.learned.levels import Column, read_columns
from tamis.learned.trees import LIBRARIES, Library, grow_trees

if TYPE_CHECKING:
    from scipy import sparse

ClassifierKind = Literal["gbt", "logistic", "svm"]

KINDS = ("gbt", "logistic", "svm")

_Vector = npt.NDArray[np.float64]

# Training ends when this many steps have not lowered the loss by this fraction: from then on, the
# order of held-out keys by score does not improve (`benches/learned.py`).
_SPAN = 10
_FLAT = 5e-4


def train(
    members: Any,
    nonmembers: Any,
    *,
    kind: ClassifierKind = "gbt",
    categorical: Sequence[str | int] = (),
    ngrams: tuple[int, int] = (1, 4),
    buckets: int | None = None,
    levels: int | None = None,
    library: Library = "lightgbm",
    trees: int = 40,
    leaves: int = 31,
    penalty: float = 1e-6,
    seed: int = 0,
) -> Model:
    """Train a classifier that separates members from non-members.

    Both are tables (NumPy arrays of numbers, or Arrow, Polars or pandas tables with the same
    columns), or both are keys, whose text is read (integers as decimal digits).

    - ``kind``: gradient boosted trees (``"gbt"``, needs ``pip install tamis[learned]``, or
      ``tamis[catboost]``), or a weight for each level of each feature (``"logistic"``, ``"svm"``
      with squared hinge loss).
    - ``categorical``: integer columns to treat as categories; text columns always are.
    - ``ngrams``: the shortest and longest n-grams of text, in bytes.
    - ``buckets``: maximum number of buckets that n-grams or categories are hashed to.
    - ``levels``: maximum number of levels of a number or category.
    - ``library``: the library that trains the trees. ``"catboost"`` uses one split per depth:
      smaller and faster for the same number of leaves, which is rounded up to a power of two.
    - ``trees``, ``leaves``: number of trees, and maximum number of leaves of each.
    - ``penalty``: weight of the squared weights relative to the mean loss, for the linear kinds.

    The size of a learned filter includes its model, so the defaults are small.

    >>> rng = np.random.default_rng(1)
    >>> model = train(rng.normal(1, 1, (500, 2)), rng.normal(-1, 1, (500, 2)), kind="logistic")
    >>> scores = model.scores(np.array([[2.0, 2.0], [-2.0, -2.0]]))
    >>> bool(scores[0] > 0.9), bool(scores[1] < 0.1)
    (True, True)
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be 'gbt', 'logistic' or 'svm', not {kind!r}")
    if library not in LIBRARIES:
        raise ValueError(f"library must be 'lightgbm' or 'catboost', not {library!r}")
    trees = check_int("trees", trees, 1 << 15, 1)
    leaves = check_int("leaves", leaves, flat.MAX_LEAVES, 2)
    seed = check_int("seed", seed, 2**64 - 1)
    penalty = check_number("penalty", penalty, "a number of at least 0", minimum=0)
    text = _is_text("members", members)
    if text != _is_text("nonmembers", nonmembers):
        raise TypeError("members and nonmembers must be both tables or both keys, not one of each")
    if text:
        try:
            shortest, longest = ngrams
        except (TypeError, ValueError):
            raise TypeError(f"ngrams must be two lengths, not {ngrams!r}") from None
        ngrams = check_int("ngrams", shortest, 255), check_int("ngrams", longest, 255)
        if buckets is None:
            buckets = 1 << 10 if kind == "gbt" else 1 << 13
        buckets = check_int("buckets", buckets, (1 << 16) - 2 if kind == "gbt" else 1 << 24, 1)
        counts, labels = _text_counts(members, nonmembers, ngrams, buckets, kind)
        grams = flat.Grams(ngrams[0], ngrams[1], buckets)
        if kind == "gbt":
            forest = grow_trees(library, counts, labels, trees, leaves, seed)
            return Model._of(_text_forest(grams, forest, len(labels)))
        fitted = fit_linear(counts, labels, kind, penalty)
        return Model._of(flat.linear(grams, fitted.weights, fitted.bias, len(labels), fitted.slope))
    if levels is None:
        levels = flat.MAX_LEVELS if kind == "gbt" else 32
    levels = check_int("levels", levels, flat.MAX_LEVELS, 2)
    buckets = check_int("buckets", 1 << 12 if buckets is None else buckets, 1 << 24, 1)
    read, labels = read_columns(
        _table("members", members),
        _table("nonmembers", nonmembers),
        categorical,
        buckets,
        levels,
        seed,
    )
    if kind == "gbt":
        matrix = np.stack([column.levels for column in read], axis=1)
        forest = grow_trees(library, matrix, labels, trees, leaves, seed)
        return Model._of(_table_forest(read, forest, len(labels)))
    fitted = fit_linear(_one_hot(read), labels, kind, penalty)
    features = [column.feature for column in read]
    return Model._of(flat.linear(features, fitted.weights, fitted.bias, len(labels), fitted.slope))


def _is_text(name: str, rows: Any) -> bool:
    """Return whether rows are keys, rather than rows of features."""
    dimensions = getattr(rows, "ndim", None)
    if dimensions is not None:
        return bool(dimensions == 1)
    if hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__"):
        names = [column for column, _ in _native.Table(rows).columns]
        return names == [None]
    if isinstance(rows, (str, bytes)) or not hasattr(rows, "__iter__"):
        raise TypeError(f"{name} must be a table or keys, not {type(rows).__name__}")
    first = next(islice(iter(rows), 1), None) if hasattr(rows, "__len__") else None
    return not isinstance(first, (list, tuple))


def _table(name: str, rows: Any) -> _native.Table:
    table = _native.Table(rows)
    if not len(table):
        raise ValueError(f"{name} must not be empty")
    return table


def _text_counts(
    members: Any, nonmembers: Any, ngrams: tuple[int, int], buckets: int, kind: ClassifierKind
) -> tuple[sparse.csr_matrix, npt.NDArray[np.float64]]:
    """Count the n-grams of each key by bucket; for trees, add the length of the key."""
    from scipy import sparse  # slow to import

    parts, sizes = [], []
    for name, keys in (("members", members), ("nonmembers", nonmembers)):
        grams = _native.text_grams(keys, *ngrams, buckets)
        ends, found, lengths = grams.ends, grams.buckets, grams.lengths
        if not len(lengths):
            raise ValueError(f"{name} must not be empty")
        if kind == "gbt":
            # The length is the last column: inserted here, as stacking matrices takes longer.
            found = np.insert(found, ends[1:], buckets)
            ends = ends + np.arange(len(ends), dtype=ends.dtype)
            values = np.ones(len(found), dtype=np.float32)
            values[ends[1:] - 1] = lengths
            counts = sparse.csr_matrix((values, found, ends), shape=(len(lengths), buckets + 1))
            counts.sum_duplicates()
            grams_only = counts.indices < buckets
            limit = np.float32(flat.MAX_LEVELS - 1)
            np.minimum(counts.data, limit, out=counts.data, where=grams_only)
        else:
            totals = np.maximum(np.diff(ends), 1)
            values = np.repeat(1 / np.sqrt(totals, dtype=np.float32), np.diff(ends))
            counts = sparse.csr_matrix((values, found, ends), shape=(len(lengths), buckets))
        parts.append(counts)
        sizes.append(len(lengths))
    return sparse.vstack(parts, format="csr"), np.repeat([1.0, 0.0], sizes)


def _one_hot(read: list[Column]) -> sparse.csr_matrix:
    """One-hot encode the level of each feature in each row."""
    from scipy import sparse  # slow to import

    starts = np.cumsum([0, *(column.feature.count for column in read)])
    indices = np.stack(
        [column.levels + start for column, start in zip(read, starts[:-1], strict=True)], axis=1
    )
    rows, width = indices.shape
    ones = np.ones(rows * width, dtype=np.float32)
    ends = np.arange(rows + 1) * width
    return sparse.csr_matrix((ones, indices.ravel(), ends), shape=(rows, starts[-1]))


def _table_forest(read: list[Column], forest: flat.Forest, rows: int) -> _native.Handle:
    """Keep only the levels of each feature that some node uses."""
    used: list[set[int]] = [set() for _ in read]
    for tree in forest.trees:
        for feature, level, *_ in tree.nodes:
            used[feature].add(level)
    kept = [np.array(sorted(levels), dtype=np.intp) for levels in used]
    features = [column.keep_levels(levels) for column, levels in zip(read, kept, strict=True)]
    for tree in forest.trees:
        tree.nodes = [
            (feature, int(np.searchsorted(kept[feature], level)), *children)
            for feature, level, *children in tree.nodes
        ]
    return flat.forest(features, np.empty(0), forest, rows)


def _text_forest(grams: flat.Grams, forest: flat.Forest, rows: int) -> _native.Handle:
    """Keep only the buckets that some node uses."""
    used = np.unique([node[0] for tree in forest.trees for node in tree.nodes]).astype(np.intp)
    for tree in forest.trees:
        tree.nodes = [(int(np.searchsorted(used, node[0])), *node[1:]) for node in tree.nodes]
    return flat.forest(grams, used, forest, rows)


class Fitted(NamedTuple):
    """A score is 1 / (1 + exp(−(bias + slope · weights · x)))."""

    weights: _Vector
    bias: float
    slope: float


def fit_linear(matrix: Any, labels: _Vector, kind: str, penalty: float) -> Fitted:
    """Minimize the mean loss plus ``penalty`` times half the squared weights.

    The loss of a margin is log(1 + e^−m) for ``"logistic"``, max(0, 1 − m)² for ``"svm"``. A
    logistic fit turns the margins of the latter into probabilities (Platt 1999).

    >>> line = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> found = fit_linear(line, np.array([0.0, 0.0, 1.0, 1.0]), "logistic", 0.01)
    >>> round(-found.bias / float(found.weights[0]), 2)
    1.5
    """
    signs = 2 * labels - 1
    weights, bias = _minimum(matrix, signs, kind, penalty)
    if kind == "logistic":
        return Fitted(weights, bias, 1.0)
    margins = np.asarray(matrix @ weights + bias)
    (slope,), offset = _minimum(margins[:, None], signs, "logistic", 1e-9)
    return Fitted(weights, slope * bias + offset, float(slope))


def _minimum(matrix: Any, signs: _Vector, kind: str, penalty: float) -> tuple[_Vector, float]:
    from scipy import sparse, special  # slow to import, and rarely needed
    from scipy.optimize import minimize

    count, width = matrix.shape
    # Some levels occur in half of the rows, others in one of thousands. Scaled halfway to equal
    # curvature (on a log scale), the weights need a fourth of the steps.
    squares = matrix.multiply(matrix) if sparse.issparse(matrix) else matrix**2
    units = (np.append(np.asarray(squares.mean(axis=0)), 1.0) / 4 + 1e-5) ** -0.25

    def loss(point: _Vector) -> tuple[float, _Vector]:
        point = point * units
        weights = point[:width]
        # In the precision of the matrix, or SciPy would copy the matrix for each product.
        margins = signs * (matrix @ weights.astype(matrix.dtype) + point[width])
        if kind == "logistic":
            value = -special.log_expit(margins).mean()
            slopes = -special.expit(-margins) * signs / count
        else:
            missing = np.maximum(1 - margins, 0)
            value = (missing**2).mean()
            slopes = -2 * missing * signs / count
        gradient = np.append(
            matrix.T @ slopes.astype(matrix.dtype) + penalty * weights, slopes.sum()
        )
        return float(value + penalty / 2 * (weights @ weights)), gradient * units

    values: list[float] = []

    def stop_when_flat(intermediate_result: Any) -> None:
        values.append(intermediate_result.fun)
        if len(values) > _SPAN and values[-1] > (1 - _FLAT) * values[-1 - _SPAN]:
            raise StopIteration

    start = np.zeros(width + 1)
    options = {"maxiter": 300}
    found = minimize(
        loss, start, jac=True, method="L-BFGS-B", callback=stop_when_flat, options=options
    )
    point = found.x * units
    return point[:width], float(point[width])
