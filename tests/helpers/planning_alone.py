"""Planning without the rest of tamis, run by `test_package.py` in a process of its own.

Of the native module only the table of kinds is there, matplotlib cannot be imported, and
``tamis/__init__.py`` does not run. Every module of planning is imported and used; those of which no
function ran are printed.
"""

import importlib
import pkgutil
import sys
from types import ModuleType, SimpleNamespace

import numpy as np

MODULES: dict[str, ModuleType] = {}
USED: set[str] = set()


def import_alone(folder):
    sys.modules["matplotlib"] = None
    tamis = sys.modules["tamis"] = ModuleType("tamis")
    tamis.__path__ = [folder]
    rows = importlib.import_module("tamis._native").kinds()
    table = ModuleType("tamis._native")
    table.kinds = lambda: rows
    sys.modules["tamis._native"] = tamis._native = table
    planning = importlib.import_module("tamis.planning")
    for found in pkgutil.walk_packages(planning.__path__, "tamis.planning."):
        MODULES[found.name] = importlib.import_module(found.name)


def note(frame, event, argument):
    if event == "call" and not frame.f_code.co_name.startswith("<"):
        USED.add(frame.f_globals.get("__name__"))


def module(name):
    return MODULES[f"tamis.planning.{name}"]


def use_sizes():
    kinds = module("kinds")
    for kind in kinds.KINDS.values():
        for option in kind.options if kind.sizes else ():
            for goal in ({"fpr": 0.01}, {"bits_per_key": 12}):
                size = kind.sizes.size(1000, **goal, **option.arguments)
                assert size.bits > 0 < size.rate(1000) < 0.1
                size.coarser(1000)
    for kind in kinds.LAYERS:
        kinds.layer_check(kind.name, 1000)
        fineness = {"fpr": 0.1} if kind.continuous else {"fingerprint_bits": 5}
        kind.layer_size(100, **fineness)
    assert module("windowed").size(1000, fpr=0.01).bits > 0
    assert module("stable").size_for(0.01, 0.01, 1000).bits > 0


def use_plans():
    plan = module("planner").plan
    zipf = module("stacked.frequencies").Zipf(1.0, 5000, 1000)
    workload = SimpleNamespace(curve=zipf, cost_curve=zipf, costs=None, present=0.0)
    for kind in module("kinds").LAYERS:
        plan(1000, workload, bits_per_key=10, layer=kind.name, last="alternating")
    plan(1000, workload, fpr=0.01, layer="bloom", rates="equal")
    best = plan(1000, workload, bits_per_key=10)
    module("plan").Plan.from_json(best.to_json())
    assert best.layers[0].coarser()
    assert str(best)
    adaptive = module("adaptive_stacked")
    for sizing in ({}, {"sizing": "lifetime", "lifetime": 10**5}):
        request = adaptive.PlanRequest(1000, bits_per_key=10, **sizing).checked()
        made = adaptive.plan_adaptive(request, workload)
        adaptive.AdaptivePlan.from_json(made.to_json())
        adaptive.next_step(made, adaptive.Counts(*[1] * len(adaptive.Counts._fields)), lambda: 0.1)


def use_scores():
    rng = np.random.default_rng(1)
    members, others = (np.float32(rng.beta(a, b, 2000)) for a, b in ((4, 2), (2, 4)))
    learned = module("learned_bloom")
    learned.plan(learned.segments(members, others), fpr=0.01)
    goal = {"bits": 2**14, "fpr": 0.01, "gap": 1000}
    for method in ("optimal", "paper"):
        made = module("stable_learned.groups").plan_stable(
            [0.7, 0.3], [0.2, 0.8], **goal, method=method
        )
        counts = {"inserted": [2, 8], "queried": [7, 3], "accepted": [1, 2]}
        module("stable_learned.group_drift").compare(made.groups, **counts)
    module("stable_learned.scores").plan_scores(members, others, **goal)


def use_collections():
    allocation = module("collection.allocation")
    keys, utility = [1000, 500, 10], [1, 9, 4]
    for kind in ("auto", "ribbon", "segmented", "truncated"):
        allocation.plan_collection(keys, utility, budget=9000, kind=kind)
    allocation.plan_collection(keys, utility, target=0.05)
    for method in ("relaxation", "greedy", "elastic"):
        allocation.plan_collection(keys, utility, budget=9000, kind="truncated", method=method)
    sliced, curves = module("collection.sliced"), module("collection.curves")
    words = np.array([90, 80, 90])
    lengths, segments = np.array([sliced.filter_size(int(n), 0.01) for n in words]).T
    curve = curves.Segmented(lengths * segments, segments, words)
    kept = sliced.plan_segments(curve, np.array([1.0, 5.0, 2.0]), 1000)
    sliced.lay_out(curve, kept, np.array([1.0, 5.0, 2.0]))
    zipf = module("stacked.frequencies").Zipf(1.0, 5000, 1000)
    module("collection.run_budgets").split_runs(np.array([100, 1000]), np.ones(2), zipf, 9000)
    module("collection.sliced").choose_kind(np.full(100, 40), np.ones(100), 9000)
    present = np.array([0.5, 0.1, 0.0])
    module("collection.reads").optimal_reads(curve, np.array([1.0, 5.0, 2.0]), present, 1000)
    sliced.is_sliceable(np.ones(3, np.uint8), curve.bits, segments, words)


def use_the_rest():
    module("rates").interval(10, 1000, 10.0)


if __name__ == "__main__":
    import_alone(sys.argv[1])
    sys.setprofile(note)
    for use in (use_sizes, use_plans, use_scores, use_collections, use_the_rest):
        use()
    sys.setprofile(None)
    print(*sorted(MODULES.keys() - USED), sep="\n")
