"""Filters of streams in batches, beside a standard Bloom filter of the same run.

    python benches/streams.py

Prints keys per second and the ratio to the yardstick, the best of rounds in which all take turns,
on one thread for insertions. The stable learned filter gets 10 features per key, which a forest of
80 trees of 32 leaves scores (a model of the size in Liu et al. 2020); then it gets the scores.
"""

import argparse
import time

import numpy as np

import tamis
from tamis.learned import train

BATCH = 2**20
GAP = 10_000


def scored():
    """A stable learned filter of 2**18 bits, its features and their scores."""
    rng = np.random.default_rng(5)
    table = rng.normal(size=(BATCH, 10)).astype(np.float32)
    members = table[:20_000] + np.float32(0.4)
    settings = {"kind": "gbt", "trees": 80, "leaves": 32}
    model = train(members[:10_000], table[20_000:30_000], **settings)
    plan = tamis.StableLearned.plan(
        model.scores(members[10_000:]),
        model.scores(table[30_000:40_000]),
        bits=2**18,
        fpr=0.01,
        gap=GAP,
        groups=3,
    )
    return tamis.StableLearned(model, plan), table, model.scores(table)


def works():
    """What is measured, by name, with its target in keys per second if it has one."""
    bloom = tamis.Bloom(2**24, fpr=0.01, layout="standard")
    yield "Bloom, standard: update", bloom.update, None
    for bits in (2**18, 2**24):
        f = tamis.StableBloom(bits // 26, fpr=0.01, bits=bits)
        for how in ("update", "seen_many", "contains"):
            yield f"StableBloom, {bits:,} bits: {how}", getattr(f, how), 2e7
    window = tamis.Windowed(10**6, fpr=0.01)
    for how in ("update", "seen_many", "contains"):
        yield f"Windowed, 1,000,000 keys: {how}", getattr(window, how), None
    learned, table, scores = scored()
    told = f"StableLearned, {learned.model.size_in_bits // 1000} Kbit model"
    yield f"{told}: update", lambda keys: learned.update(keys, features=table), 7e6
    yield f"{told}: contains", lambda keys: learned.contains(keys, features=table), 9e6
    ask = tamis._native.stable_learned_pass
    for how, insert in (("update", True), ("contains", False)):
        work = lambda keys, insert=insert: ask(learned._kernel, keys, scores, insert)  # noqa: E731
        yield f"StableLearned, scores given: {how}", work, None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    measured = list(works())
    best = [float("inf")] * len(measured)
    for turn in range(rounds):
        keys = np.arange(turn * BATCH, (turn + 1) * BATCH)
        for i, (_, work, _) in enumerate(measured):
            began = time.perf_counter()
            work(keys)
            best[i] = min(best[i], time.perf_counter() - began)
    for (name, _, target), seconds in zip(measured, best, strict=True):
        aim = f"  (target: {target:,.0f})" if target else ""
        ratio = best[0] / seconds
        print(f"{name:44} {BATCH / seconds:13,.0f} per second {ratio:6.2f} of the first{aim}")


if __name__ == "__main__":
    main()
