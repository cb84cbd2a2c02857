"""Adaptive stacks: layers for queries that are not known yet, and when to change them.

There are two ways to choose the layers (Deeds, Hentschel, Idreos 2021, section 6):
``"eventual"`` plans the stack with the lowest rate in the end, ``"lifetime"`` three layers with the
lowest mean rate over an expected number of queries (see `tamis.planning.stacked.lifetime`).
"""

from __future__ import annotations

import json
import math
from copy import copy
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, Self, cast, get_args

import numpy as np

from tamis._checks import (
    MALFORMED,
    MAX_KEYS,
    check_int,
    check_workload,
    one_of,
    rate_or_budget,
)
from tamis.planning.kinds import KINDS, LAYERS, LayerKind
from tamis.planning.plan import Plan
from tamis.planning.planner import plan, single_layer
from tamis.planning.stacked import predictions
from tamis.planning.stacked.frequencies import Steps
from tamis.planning.stacked.goal import Goal
from tamis.planning.stacked.lifetime import mean_rate, queries_for, shape, three_layers
from tamis.planning.stacked.realize import realize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tamis.workload import Workload

Sizing = Literal["eventual", "lifetime"]

ADAPTIVE_LAYERS = tuple(kind for kind in LAYERS if kind.inserts and not kind.bounded)
"""The kinds that can be layers: negatives are inserted as they are found, and none is refused."""

FEW = 64
"""Fewer keys are planned as this many, because whole blocks exceed a budget per key."""

TOLERANCE = 0.5
"""Relative difference from the expected rate above which the queries changed (section 6)."""

PROMISING = 0.8
"""A new plan is adopted if it predicts at most this fraction of the current rate."""

MIN_SAMPLED = 64
"""The fewest distinct false positives that a distribution is fitted to."""

_WINDOW = 64
"""Expected false positives of a window, or twice as many: an excess of a half is then four
sigmas."""
_MIN_QUERIES = 1000

_OBSERVED = 512
"""False positives of the first layer alone after which their distribution is fitted."""

# An eventual stack waits for its layer to fill: for `_PATIENCE` times the queries that are expected
# to collect the fraction `_COLLECTED` of the planned negatives.
_PATIENCE = 2.0
_COLLECTED = 0.95

# The largest fraction of queries that a stack can know, for any distribution.
_KNOWABLE = 0.999


@dataclass(frozen=True)
class PlanRequest:
    """The arguments of an adaptive stack: enough to plan it again for other queries."""

    n_keys: int
    sizing: Sizing = "eventual"
    lifetime: int | None = None
    layer: LayerKind = "auto"
    fpr: float | None = None
    bits_per_key: float | None = None

    def checked(self) -> PlanRequest:
        """Return it with checked and converted arguments."""
        fpr, bits_per_key = rate_or_budget(self.fpr, self.bits_per_key)
        one_of("sizing", self.sizing, get_args(Sizing))
        one_of("layer", self.layer, ("auto", *(kind.name for kind in ADAPTIVE_LAYERS)))
        if (self.lifetime is None) != (self.sizing == "eventual"):
            raise ValueError(
                "lifetime, a number of queries for absent keys, must be given with "
                f"sizing='lifetime' and only then, not {self.lifetime} with {self.sizing!r}"
            )
        lifetime = (
            None if self.lifetime is None else check_int("lifetime", self.lifetime, MAX_KEYS, 1)
        )
        return replace(
            self,
            n_keys=check_int("n_keys", self.n_keys, MAX_KEYS),
            lifetime=lifetime,
            fpr=fpr,
            bits_per_key=bits_per_key,
        )

    @property
    def kinds(self) -> tuple[LayerKind, ...]:
        """The kinds of layers to try."""
        if self.layer != "auto":
            return (self.layer,)
        return tuple(cast(LayerKind, kind.name) for kind in reversed(ADAPTIVE_LAYERS))

    @property
    def goal(self) -> Goal:
        """The goal of the searches."""
        keys = max(self.n_keys, FEW)
        if self.fpr is not None:
            return Goal(keys, fpr=self.fpr)
        assert self.bits_per_key is not None
        return Goal(keys, budget=math.floor(self.bits_per_key * keys))


@dataclass(frozen=True)
class AdaptivePlan:
    """The layers of an adaptive stack, and how long negatives are collected.

    ``stack`` is the plan of all layers, with the ψ expected when they are complete;
    ``observations`` (N_o) is the number of queries for absent keys after which a layer of negatives
    is closed, unless it is full before; ``mean_fpr`` is the mean rate over the lifetime, or the
    final rate.
    """

    stack: Plan
    observations: int
    mean_fpr: float
    request: PlanRequest
    shape: Steps

    def to_json(self) -> bytes:
        """Return the plan as JSON."""
        return json.dumps(
            {
                "stack": json.loads(self.stack.to_json()),
                "observations": self.observations,
                "mean_fpr": self.mean_fpr,
                "request": asdict(self.request),
                "ranks": self.shape.ranks.tolist(),
                "mass": self.shape.mass.tolist(),
            }
        ).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Read the output of `to_json`; raise `ValueError` for anything else."""
        try:
            plain = json.loads(text)
            stack = Plan.from_json(json.dumps(plain["stack"]))
            curve = Steps(np.array(plain["ranks"], float), np.array(plain["mass"], float))
            made = cls(
                stack,
                check_int("observations", plain["observations"], 2**63),
                float(plain["mean_fpr"]),
                PlanRequest(**plain["request"]).checked(),
                curve,
            )
            made._check()
        except MALFORMED as error:
            raise ValueError(f"this is not the plan of an adaptive stack ({error})") from None
        return made

    def _check(self) -> None:
        if not 0 <= self.mean_fpr < math.inf:
            raise ValueError(f"mean_fpr is {self.mean_fpr}")
        rises = all(
            array.ndim == 1
            and array[0] == 0
            and (np.diff(array) >= min_step).all()
            and array[-1] <= maximum
            for array, min_step, maximum in (
                (self.shape.ranks, 0.5, MAX_KEYS),
                (self.shape.mass, 0, 1 + 1e-9),
            )
        )
        if not rises or len(self.shape.ranks) != len(self.shape.mass):
            raise ValueError("its distribution does not rise")
        layers = self.stack.layers
        if len(layers) % 2 == 0 or len(layers) > 32:
            raise ValueError("it has an even number of layers")
        for layer in layers:  # `Plan.from_json` has checked the rest
            kind = KINDS[layer.kind]
            if kind not in ADAPTIVE_LAYERS or layer.layout != kind.layout:
                raise ValueError(f"a layer is {layer!r}")


def plan_adaptive(request: PlanRequest, workload: Workload) -> AdaptivePlan:
    """Plan an adaptive stack for the distribution of a workload, ignoring its values.

    >>> import tamis
    >>> workload = tamis.Workload.zipf(exponent=1.0, universe=10**6)
    >>> request = PlanRequest(10**5, "lifetime", 10**6, bits_per_key=10)
    >>> p = plan_adaptive(request, workload)
    >>> len(p.stack.layers), p.observations < 200_000, p.mean_fpr < 0.006
    (3, True, True)
    """
    request = request.checked()
    check_workload(workload, optional=False)
    curve = shape(workload.curve)
    plans = [
        made for kind in request.kinds for made in _plans_of_kind(request, kind, workload, curve)
    ]
    if not plans:
        raise ValueError(
            f"no {' or '.join(request.kinds)} layer fits fpr={request.fpr}, "
            f"bits_per_key={request.bits_per_key}"
        )
    smallest = request.fpr is not None
    best = min(plans, key=lambda made: made.stack.bits if smallest else made.mean_fpr)
    return replace(best, stack=replace(best.stack, workload=None))


def _plans_of_kind(
    request: PlanRequest, kind: LayerKind, workload: Workload, curve: Steps
) -> Iterator[AdaptivePlan]:
    goal = request.goal
    if request.sizing == "eventual":
        # It learns the queries, not their costs.
        learned = copy(workload)
        learned.curve, learned.costs = _limit_known(curve), None
        try:
            made = plan(
                goal.keys, learned, fpr=request.fpr, bits_per_key=request.bits_per_key,
                layer=kind, last="alternating", updates=True,
            )  # fmt: skip
        except ValueError:
            return
        needed = queries_for(curve, _COLLECTED * made.negatives) if made.negatives else 0
        yield AdaptivePlan(made, math.ceil(_PATIENCE * needed), made.expected_fpr, request, curve)
    else:
        yield from _for_lifetime(request, kind, goal, curve)


def _limit_known(curve: Steps) -> Steps:
    """Leave a fraction of the queries to values that are never known."""
    known = float(curve.mass[-1])
    return curve if known <= _KNOWABLE else Steps(curve.ranks, curve.mass * (_KNOWABLE / known))


def _for_lifetime(
    request: PlanRequest, kind: LayerKind, goal: Goal, curve: Steps
) -> Iterator[AdaptivePlan]:
    assert request.lifetime is not None
    one = single_layer(kind, goal)
    if one is not None:
        made = realize(one, goal)
        yield AdaptivePlan(made, 0, made.expected_fpr, request, curve)
    found = three_layers(goal, kind, curve, request.lifetime)
    if found is None:
        return
    observations, stack = found
    if goal.minimizes_bits:  # the rate of the three layers that gives the requested mean
        goal = replace(goal, fpr=float(predictions.expected_rate(stack.rates, stack.psi)))
    made = realize(stack, goal)
    mean = mean_rate(made.layers[0].rate, made.expected_fpr, observations, request.lifetime)
    yield AdaptivePlan(made, observations, mean, request, curve)


class Counts(NamedTuple):
    """The state that `next_step` decides by.

    ``items`` and ``capacity`` are of the layer being filled, which has been open for ``collecting``
    queries. In the current window, ``queries`` for absent keys and ``false_positives`` among them
    were counted. ``strikes`` is how often the layers were dropped in a row.
    """

    layers: int
    items: int
    negatives_capacity: int
    collecting: int
    queries: int
    false_positives: int
    strikes: int


Step = Literal["wait", "grow", "as expected", "drop", "remodel"]


def next_step(plan: AdaptivePlan, counts: Counts, expected_fpr: Callable[[], float]) -> Step:
    """Decide the next step.

    ``"grow"``: a layer of negatives is full, or was open long enough. ``"drop"``: the rate exceeds
    the expected one by half, so other keys are queried. ``"remodel"``: dropping did not help, or
    the rate is half of the expected one, so the distribution changed; or enough was observed to
    fit it, if nothing is collected. ``"as expected"``: the rate is as expected. ``expected_fpr`` is
    called only if necessary.
    """
    closed = counts.items >= counts.negatives_capacity or counts.collecting >= plan.observations
    if counts.items > 0 and closed and counts.layers + 2 <= len(plan.stack.layers):
        return "grow"
    if counts.layers == 1:
        observing = counts.negatives_capacity == 0 and len(plan.stack.layers) > 1
        return "remodel" if observing and counts.false_positives >= _OBSERVED else "wait"
    if counts.false_positives < _WINDOW // 2 or counts.queries < _MIN_QUERIES:
        return "wait"
    expected = counts.queries * expected_fpr()
    if expected < _WINDOW and counts.false_positives < 2 * _WINDOW:
        return "wait"
    if counts.false_positives > (1 + TOLERANCE) * expected:
        return "remodel" if counts.strikes else "drop"
    return "remodel" if counts.false_positives < (1 - TOLERANCE) * expected else "as expected"
