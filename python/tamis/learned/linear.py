"""Linear classifiers: a smooth convex loss minimized by L-BFGS."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

_Vector = npt.NDArray[np.float64]

# Training ends when this many steps have not lowered the loss by this fraction: from then on, the
# order of held-out keys by score does not improve (`benches/learned.py`).
_SPAN = 10
_FLAT = 5e-4


class Fitted(NamedTuple):
    """A score is 1 / (1 + exp(−(bias + slope · weights · x)))."""

    weights: _Vector
    bias: float
    slope: float


def fit(matrix: Any, labels: _Vector, kind: str, penalty: float) -> Fitted:
    """Minimize the mean loss plus ``penalty`` times half the squared weights.

    The loss of a margin is log(1 + e^−m) for ``"logistic"``, max(0, 1 − m)² for ``"svm"``. A
    logistic fit turns the margins of the latter into probabilities (Platt 1999).

    >>> line = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> found = fit(line, np.array([0.0, 0.0, 1.0, 1.0]), "logistic", 0.01)
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
