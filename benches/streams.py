"""Stream filters in batches, next to a standard Bloom filter in the same run.

    python benches/streams.py

Prints keys per second and per CPU second, the best of rounds in which all take turns, and the ratio
to the Bloom filter. Insertions, and queries of stable and windowed filters, use one thread; scoring
uses all from 65,536 rows on. The stable learned filters get 10 features per key and have models of
the size in Liu et al. 2020, Table 3 (173 to 328 Kbit): trees by CatBoost, as in the paper, and by
LightGBM. The last rows use precomputed scores.
"""

import argparse
import time
from importlib.util import find_spec

import numpy as np

import tamis
from tamis.learned import train

BATCH = 2**20
GAP = 10_000
MODELS = {
    "catboost": {"library": "catboost", "trees": 140, "leaves": 64},
    "lightgbm": {"library": "lightgbm", "trees": 80, "leaves": 32},
}


class Given:
    """A classifier that returns scores computed before."""

    def __init__(self, scores):
        self.scores = scores

    def predict_proba(self, rows):
        return self.scores


def scored(settings):
    """Return a model, the plan of a filter with 2**18 bits of counters, and features of keys."""
    rng = np.random.default_rng(5)
    table = rng.normal(size=(BATCH, 10)).astype(np.float32)
    members = table[:20_000] + np.float32(0.4)
    model = train(members[:10_000], table[20_000:30_000], **settings)
    plan = tamis.StableLearned.plan(
        model.scores(members[10_000:]),
        model.scores(table[30_000:40_000]),
        bits=2**18,
        fpr=0.01,
        gap=GAP,
        groups=3,
    )
    return model, plan, table


def works():
    """Yield what is measured, by name, with its target in keys per second, if any."""
    bloom = tamis.Bloom(2**24, fpr=0.01, layout="standard")
    yield "Bloom, standard: update", bloom.update, None
    for bits in (2**18, 2**24):
        f = tamis.StableBloom(bits // 26, fpr=0.01, bits=bits)
        for how in ("update", "seen_many", "contains"):
            yield f"StableBloom, {bits:,} bits: {how}", getattr(f, how), 2e7
    window = tamis.Windowed(10**6, fpr=0.01)
    for how in ("update", "seen_many", "contains"):
        yield f"Windowed, 1,000,000 keys: {how}", getattr(window, how), None
    for library, settings in MODELS.items():
        if not find_spec(library):
            print(f"{library} is not installed: no model of its trees")
            continue
        model, plan, table = scored(settings)
        learned = tamis.StableLearned(model, plan)
        label = f"{library}, {learned.model.size_in_bits // 1000} Kbit"
        yield f"{label}: scores", lambda _, m=learned.model, t=table: m.scores(t), None
        for how, target in (("update", 7e6), ("contains", 9e6)):
            work = getattr(learned, how)
            name = f"StableLearned, {label}: {how}"
            yield name, lambda keys, w=work, t=table: w(keys, features=t), target
        given = tamis.StableLearned(Given(learned.model.scores(table)), plan)
        for how in ("update", "contains"):
            work = getattr(given, how)
            name = f"StableLearned, {library}, scores given: {how}"
            yield name, lambda keys, w=work, t=table: w(keys, features=t), None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    measured = list(works())
    best = np.full((len(measured), 2), np.inf)
    for turn in range(rounds):
        keys = np.arange(turn * BATCH, (turn + 1) * BATCH)
        for i, (_, work, _) in enumerate(measured):
            began = np.array([time.perf_counter(), time.process_time()])
            work(keys)
            spent = np.array([time.perf_counter(), time.process_time()]) - began
            best[i] = np.minimum(best[i], spent)
    print(f"{'':48} per second   per CPU second  of the first")
    for (name, _, target), (wall, cpu) in zip(measured, best, strict=True):
        aim = f"  (target: {target:,.0f})" if target else ""
        print(f"{name:46} {BATCH / wall:12,.0f} {BATCH / cpu:16,.0f} {best[0, 1] / cpu:10.2f}{aim}")


if __name__ == "__main__":
    main()
