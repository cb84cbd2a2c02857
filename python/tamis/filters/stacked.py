"""`tamis.Stacked`: alternating layers of keys and known negatives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self, SupportsIndex, Unpack

from tamis import _native
from tamis._checks import check_workload, shown
from tamis._types import Keys
from tamis.filters.contract import Filter
from tamis.filters.stack_builder import Recipe, StackBuilder
from tamis.planning.plan import Plan

if TYPE_CHECKING:
    from tamis.planning.planner import PlanOptions
    from tamis.workload import Workload


class Stacked(_native.Stacked, Filter):  # type: ignore[override]
    """A filter that knows which absent keys are queried often, and rarely accepts them.

    Layers of keys and of known negatives alternate: the second layer stores the known negatives
    that the first accepts, the third the keys that the second accepts, and so on. The last layer
    can be a static function of all keys and negatives that reach it; then no known negative is
    ever accepted.

    `add`, `update` and `remove` work if the layers of keys support them (see `inserts` and
    `deletes`), and raise `ValueError` otherwise.

    >>> import tamis
    >>> workload = tamis.Workload.zipf(exponent=1.0, universe=20_000, sample=10_000)
    >>> known = range(5000, 15_000)  # the most frequent first
    >>> f = Stacked.build(range(1000), workload, negatives=known, bits_per_key=12)
    >>> bool(f.contains(range(1000)).all()), int(f.contains(known).sum())
    (True, 0)
    >>> f.bits_per_key <= 12, f.expected_fpr < f.fpr_bound
    (True, True)

    References: Deeds, Hentschel, Idreos 2021; Schanck 2025 (the exact last layer).
    """

    _kind = "stacked"

    @classmethod
    def build(
        cls,
        keys: Keys,
        workload: Workload | None = None,
        *,
        bits_per_key: float | None = None,
        fpr: float | None = None,
        negatives: Keys | Iterator[Keys] | None = None,
        capacity: SupportsIndex | None = None,
        seed: int = 0,
        key: bytes | None = None,
        **options: Unpack[PlanOptions],
    ) -> Self:
        """Plan and build a filter for these keys and this workload.

        ``options`` are arguments of `tamis.plan`; see `from_plan` for ``negatives`` and
        ``capacity``. Without a workload, or if no absent key is frequent in it, the result is a
        filter of one layer.

        >>> len(Stacked.build([1, 2, 2, 3], fpr=0.01))
        3
        """
        check_workload(workload)
        if workload is not None:
            workload.warn_if_unlike(keys)
        distinct = _native.Distinct(keys, seed, key)
        kernel = cls._plan_kernel(
            distinct, workload=workload, bits_per_key=bits_per_key, fpr=fpr,
            negatives=negatives, capacity=capacity, **options,
        )  # fmt: skip
        return cls._of(kernel)

    @classmethod
    def from_plan(
        cls,
        plan: Plan,
        keys: Keys,
        *,
        negatives: Keys | Iterator[Keys] | None = None,
        capacity: SupportsIndex | None = None,
        seed: int = 0,
        key: bytes | None = None,
    ) -> Self:
        """Build a filter of these keys with the layers of a plan.

        ``negatives`` are the known negatives, the most frequent first (default: from the
        plan's workload): a column, or an iterator of columns that need not fit in memory together.
        The first ``plan.negatives`` of them are used. If there are fewer, or if some are keys,
        `psi` and `expected_fpr` count only the others. Layers have the planned
        rates, and are sized for the keys and negatives that reach them. If these are more than
        planned and would exceed the budget, the least frequent negatives are left out, or the last
        layers get coarser. ``capacity`` is the number of keys to reserve space for, if keys
        will be added.
        """
        if not isinstance(plan, Plan):
            raise TypeError(f"plan must be a tamis.Plan, as tamis.plan returns, not {shown(plan)}")
        if plan.workload is not None and negatives is None:
            plan.workload.warn_if_unlike(keys)
        distinct = _native.Distinct(keys, seed, key)
        return cls._of(
            cls._plan_kernel(distinct, plan=plan, negatives=negatives, capacity=capacity)
        )

    @classmethod
    def _plan_kernel(cls, distinct: _native.Distinct, **arguments: Any) -> _native.Handle:
        recipe = Recipe.of(len(distinct), **arguments)
        build = StackBuilder(recipe, distinct)
        first = build.first()
        return build.finish(first, recipe.survivors(first))

    @classmethod
    def _takes_hashes(cls) -> bool:
        return True

    @classmethod
    def _shard_kernel(cls, shard: _native.Shard, **arguments: Any) -> _native.Handle:
        if shard.shards == 1:
            return cls._plan_kernel(shard.keys, **arguments)
        if arguments.get("plan") is None:
            raise ValueError(
                "plan must be a plan for the keys of all shards, as tamis.plan returns, not None"
            )
        recipe = Recipe.of(len(shard.keys), **arguments)
        build = StackBuilder(recipe, shard.keys, 1 / shard.shards)
        first = build.first()
        return build.finish(first, recipe.survivors(first).by_shard(shard.shards)[shard.index])

    @property
    def layers(self) -> tuple[_native.BuiltLayer, ...]:
        """The layers, in order."""
        return tuple(self._layers)

    def _describe(self) -> str:
        return ", ".join(f"{layer.kind} of {layer.stores}" for layer in self.layers)
