"""Predicted metrics of a stack, from the rates of its layers.

A stack is an odd number T of layers with rates α₁ … α_T. Odd layers store keys, even ones frequent
negatives; each stores only items that all previous layers accept. A query passes layers until one
rejects it: if an odd layer rejects it, the answer is no; if an even layer rejects it, or none, the
answer is yes (Deeds, Hentschel, Idreos 2021; equation and section numbers are theirs).

``rates`` is an array whose last axis is the layers, so that many stacks are computed at once.
``psi`` (ψ) is the fraction of queries for absent keys that are for one of the stored ``negatives``.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]


class Checks(NamedTuple):
    """Mean number of layers that a query passes: for a key, a frequent and another negative.

    Floats, or arrays for many stacks.
    """

    keys: Any
    frequent: Any
    infrequent: Any


def frequent_rate(rates: npt.ArrayLike) -> Any:
    """P(accepted | a stored negative): every layer of keys accepts it (4.1).

    >>> frequent_rate([0.01, 0.1, 0.01])
    0.0001
    """
    return _as_scalar(_layers(rates)[..., ::2].prod(axis=-1))


def infrequent_rate(rates: npt.ArrayLike) -> Any:
    """P(accepted | unknown negative): a layer of negatives rejects it, or no layer does (4.1).

    It is also the bound EFPB of the rate under any workload (4.3): no negative has a higher rate.

    >>> infrequent_rate([0.25]), infrequent_rate([0.25, 0.5, 0.5])
    (0.25, 0.1875)
    """
    rates = _layers(rates)
    reached = _reached(rates)
    rejected = reached[..., 1::2] * (1 - rates[..., 1::2])
    return _as_scalar(rates.prod(axis=-1) + rejected.sum(axis=-1))


def expected_rate(rates: npt.ArrayLike, psi: npt.ArrayLike) -> Any:
    """EFPR, the rate under the workload (4.1; with equal rates it is Equation 1).

    >>> round(expected_rate([0.01] * 5, 0.8), 6)
    0.001981
    """
    psi = np.asarray(psi)
    return _as_scalar(psi * frequent_rate(rates) + (1 - psi) * infrequent_rate(rates))


def equal_rate(rate: npt.ArrayLike, layers: npt.ArrayLike, psi: npt.ArrayLike) -> Any:
    """EFPR of T layers of equal rates (Equation 1); T may be infinite.

    >>> round(equal_rate(0.01, 5, 0.8), 6), round(equal_rate(0.01, math.inf, 0.8), 6)
    (0.001981, 0.00198)
    """
    rate, psi, layers = np.asarray(rate, float), np.asarray(psi), np.asarray(layers)
    frequent = rate ** ((layers + 1) / 2)
    return _as_scalar(psi * frequent + (1 - psi) * (rate + rate ** (layers + 1)) / (1 + rate))


def equal_size(rate: npt.ArrayLike, layers: npt.ArrayLike, ratio: npt.ArrayLike) -> Any:
    """Items of all T layers of equal rates, per key, with ``ratio`` = |N_f|/|P| (4.2).

    With infinitely many layers, this is the bracket of Equation 2.

    >>> equal_size(0.5, 3, 1.0), equal_size(0.5, math.inf, 1.0)
    (2.0, 3.0)
    """
    rate, ratio, layers = np.asarray(rate, float), np.asarray(ratio), np.asarray(layers)
    keys = 1 - rate ** ((layers + 1) / 2)
    negatives = rate * (1 - rate ** ((layers - 1) / 2))
    return _as_scalar((keys + ratio * negatives) / (1 - rate))


def items(rates: npt.ArrayLike, keys: float, negatives: npt.ArrayLike) -> Array:
    """Expected items in each layer: items of its set that all layers of the other set accept (4.2).

    >>> items([0.01, 0.5, 0.01], 1000, 3000).tolist()
    [1000.0, 30.0, 500.0]
    """
    rates = _layers(rates)
    found = np.empty_like(rates)
    found[..., 0] = keys
    found[..., 2::2] = keys * rates[..., 1::2].cumprod(axis=-1)
    passed = rates[..., :-1:2].cumprod(axis=-1)
    found[..., 1::2] = np.asarray(negatives)[..., None] * passed
    return found


def checks(rates: npt.ArrayLike) -> Checks:
    """Layers that each kind of query passes (4.4; exact sums in the earlier paper, 4.1).

    >>> checks([0.01, 0.5, 0.01])
    Checks(keys=2.5, frequent=1.02, infrequent=1.015)
    """
    rates = _layers(rates)
    pairs = rates.shape[-1] // 2
    by_keys = rates[..., 1::2].cumprod(axis=-1)  # P(a key passes the first i layers of negatives)
    by_frequent = rates[..., :-1:2].cumprod(axis=-1)
    last = by_keys[..., -1] if pairs else 0.0
    met_by_keys = 1.0 if not pairs else 2.0 + 2 * by_keys[..., :-1].sum(axis=-1) + last
    return Checks(
        _as_scalar(met_by_keys),
        _as_scalar(1 + 2 * by_frequent.sum(axis=-1)),
        _as_scalar(_reached(rates).sum(axis=-1)),
    )


def construction(rates: npt.ArrayLike, keys: float, negatives: float) -> tuple[float, float]:
    """Insertions and lookups to build a stack (4.4; exact sums in the earlier paper, 4.1).

    >>> insertions, lookups = construction([0.01, 0.5, 0.01], 1000, 3000)
    >>> insertions, lookups
    (1530.0, 4000.0)
    """
    rates = _layers(rates)
    stored = items(rates, keys, negatives)
    # Items not yet rejected are looked up in each layer of the other set, except the last.
    lookups = negatives + keys + stored[1:-2:2].sum() + stored[2:-1:2].sum()
    return float(stored.sum()), float(lookups) if len(rates) > 1 else 0.0


def drift(rates: npt.ArrayLike, psi: float, psi_after: float) -> float:
    """Change of EFPR if ψ changes, which is linear in ψ (4.3).

    >>> round(drift([0.01] * 5, 0.8, 0.0), 5)
    0.00792
    """
    return float((psi_after - psi) * (frequent_rate(rates) - infrequent_rate(rates)))


def concentration(
    rates: npt.ArrayLike, sizes: npt.ArrayLike, keys: int, negatives: int, share: float
) -> float:
    """Bound P(size differs from its mean by more than ``share`` of it), if sizes adapt (4.2).

    ``sizes`` are the bits per item of each layer, s(α_i).

    >>> concentration([0.01] * 5, [9.6] * 5, 10**6, 5 * 10**6, 0.01) < 6e-4
    True
    """
    rates, sizes = _layers(rates), np.asarray(sizes, float)
    low, high = int(rates.argmin()), int(rates.argmax())
    ratio = negatives / keys
    spread = sizes[low] * (1 - rates[low]) / (sizes[high] * (1 - rates[high]))
    weight = (1 + ratio) / (1 + ratio * rates[low]) ** 2
    return min(1.0, float(rates[high] / (keys * share**2) * spread**2 * weight))


def exact_rate(rate: npt.ArrayLike, psi: npt.ArrayLike) -> Any:
    """EFPR of one layer and a one-bit function of the keys and the negatives that pass it.

    Stored negatives are never accepted; any other that passes the layer gets a random bit.

    >>> exact_rate(2**-8, 0.75)
    0.00048828125
    """
    return _as_scalar((1 - np.asarray(psi)) * np.asarray(rate) / 2)


def exact_checks(rate: Any) -> Checks:
    """Layers that a query passes in a stack of one layer and a function."""
    return Checks(2.0, 1 + rate, 1 + rate)


def lower_bound(rate: float, ratio: float, frequent: float = 0.0) -> float:
    """Return the fewest bits per key of any filter with these rates.

    It accepts a fraction ``rate`` (ε) of all absent keys, and ``frequent`` (φ) of the stored
    negatives, which are ``ratio`` times as many as keys. Among the functions that accept a fraction
    ε of the universe, a fraction ε^|P|·2^(−|N_f|·d(φ‖ε)) fits, d being the relative entropy; and
    (1 − ε)^|N_f| of them reject all stored negatives.

    >>> round(lower_bound(2**-8, 5.0), 3)
    8.028
    >>> lower_bound(2**-8, 5.0, 2**-8)
    8.0
    """
    if not 0 < rate < 1:
        return 0.0 if rate else math.inf
    entropy = (1 - frequent) * (math.log1p(-frequent) - math.log1p(-rate)) if frequent < 1 else 0.0
    if frequent:
        entropy += frequent * math.log(frequent / rate)
    return -math.log2(rate) + ratio * entropy / math.log(2)


def stacking_pays(
    rate: float, psi: float, ratio: float, *, offset: float = 0.0, points: int = 4096
) -> bool:
    """Theorem 3: whether a stack is guaranteed to be smaller than one layer at this rate.

    ``offset`` is the c of a size of (log2(1/α) + c)/f bits per key: 0 for Bloom filters.

    >>> stacking_pays(0.01, 0.10, 1.0), stacking_pays(0.01, 0.05, 1.0)
    (True, False)
    """
    return ratio <= max_negatives(rate, psi, offset=offset, points=points)


def max_negatives(rate: float, psi: float, *, offset: float = 0.0, points: int = 4096) -> float:
    """The largest |N_f|/|P| for which Theorem 3 holds at this ψ (Figures 2a and 2b).

    In the theorem, each layer has the rate rate/(1−k) for some k up to ψ.
    """
    k = np.linspace(0, min(psi, 1 - 2 * rate), points)[1:]
    if psi <= 0 or k[-1] <= 0:
        return -1.0
    saved = -np.log1p(-k) / (np.log((1 - k) / rate) + offset * math.log(2))
    return float((saved * (1 - k - rate) / rate - 1).max())


def space_saving(
    rate: float, psi: float, ratio: float, size: Callable[[Array], Array], points: int = 4096
) -> float:
    """Bits per key that equal layers save compared with one layer (Figure 2c); at least 0.

    ``size`` returns the bits per item of rates.

    >>> saved = space_saving(0.01, 0.9, 1.0, lambda rate: -np.log2(rate) / math.log(2))
    >>> round(saved, 2)
    3.73
    """
    highest = min(rate / (1 - psi) if psi < 1 else 1.0, 1 - 1e-9)
    each = np.geomspace(rate * 1e-3, highest, points)
    stacked = size(each) * equal_size(each, math.inf, ratio)
    return max(0.0, float(size(np.asarray(rate)) - stacked.min()))


def _layers(rates: npt.ArrayLike) -> Array:
    array = np.asarray(rates, float)
    if array.ndim == 0 or array.shape[-1] % 2 == 0:
        raise ValueError(f"rates must have an odd number of layers, not shape {array.shape}")
    return array


def _reached(rates: Array) -> Array:
    """P(an infrequent negative reaches layer i)."""
    reached = np.ones_like(rates)
    rates[..., :-1].cumprod(axis=-1, out=reached[..., 1:])
    return reached


def _as_scalar(value: Any) -> Any:
    """Return a scalar as a float, and an array unchanged."""
    return float(value) if np.ndim(value) == 0 else value
