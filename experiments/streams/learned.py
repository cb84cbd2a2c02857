"""Learned Bloom filters on real data: rate against bits, classifier included.

.venv/bin/python experiments/streams/learned.py [--quick]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.stats import rankdata

sys.path.insert(0, str(Path(__file__).parents[1]))

import data
import tamis
from tamis.learned import Model, train
from tamis.planning import learned as planning

SEED = 7
TRAINED = 0.2  # the fraction of the data that trains the classifier, as in the paper


def anchors(quick: bool) -> None:
    """Print bits per key at a rate of 0.001 with weak scores, as in the example of FastPLBF."""
    rng = np.random.default_rng(SEED)
    n = 20_000 if quick else 100_000
    print(f"\nPartitioned plan at a rate of 0.001 for {n:,} keys with weak scores, bits per key")
    print("(FastPLBF in Python: 14.0 where Bloom has 14.35, 0.7 to 2.7 s, model not counted)")
    print(f"{'segments':>9} {'plan s':>7} {'Bloom':>7} {'PLBF, Bloom':>12} {'PLBF, ribbon':>13}")
    # Scores with densities 0.8 + 0.4·s for members and 1.2 − 0.4·s for non-members.
    members, others = (inverse(rng.random(n), tilt) for tilt in (0.4, -0.4))
    for count in (200, 1000):
        start = time.perf_counter()
        parts = planning.segments(members, others, count)
        plan = planning.plan(parts, fpr=0.001, step=0.05)
        elapsed = time.perf_counter() - start
        bloom = np.log2(1000) / np.log(2)
        bits = plan.filter_bits / n
        print(f"{count:>9} {elapsed:>7.2f} {bloom:>7.2f} {bits / np.log(2):>12.2f} {bits:>13.2f}")


def inverse(uniform: np.ndarray, tilt: float) -> np.ndarray:
    """Return scores with the density (1 − tilt/2) + tilt·s."""
    base = 1 - tilt / 2
    return ((np.sqrt(base**2 + 2 * tilt * uniform) - base) / tilt).astype(np.float32)


def split(rows: pa.Table | pa.Array, rng: np.random.Generator) -> tuple[pa.Table, pa.Table]:
    order = rng.permutation(len(rows))
    cut = int(TRAINED * len(rows))
    return rows.take(pa.array(order[:cut])), rows.take(pa.array(order[cut:]))


def area(members: np.ndarray, others: np.ndarray) -> float:
    """Return the area under the ROC curve."""
    ranks = rankdata(np.concatenate([members, others]))[: len(members)]
    return (ranks.sum() - len(members) * (len(members) + 1) / 2) / (len(members) * len(others))


def compare(name: str, members: pa.Table, others: pa.Table, kinds: dict, budgets: list) -> None:
    """Print rate against bits: 20 % train the classifier, the rest is built from and queried."""
    rng = np.random.default_rng(SEED)
    known, members = split(members, rng)
    strangers, others = split(others, rng)
    keys = np.arange(len(members))
    held, asked = others[::2], others[1::2]
    absent = np.arange(len(members), len(members) + len(asked))
    print(f"\n{name}: {len(members):,} keys, {len(asked):,} absent keys queried, rate in %")
    models = {}
    for kind, settings in kinds.items():
        start = time.perf_counter()
        models[kind] = train(known, strangers, **settings)
        elapsed = time.perf_counter() - start
        scored = area(models[kind].scores(members), models[kind].scores(asked))
        size = models[kind].size_in_bits
        print(f"  {kind}: AUC {scored:.4f}, {size / 1000:.0f} Kbit, trained in {elapsed:.1f} s")
    header = ["bits/key", "Bloom", "Ribbon"]
    header += [f"{kind} {form}" for kind in kinds for form in planning.FORMS]
    print("  " + " ".join(f"{title:>{max(8, len(title))}}" for title in header))
    for budget in budgets:
        cells = [f"{budget:>8}"]
        for plain, shape in ((tamis.Bloom, {"layout": "standard"}), (tamis.Ribbon, {})):
            try:
                f = plain.build(keys, bits_per_key=budget, **shape)
                cells.append(f"{100 * f.contains(absent).mean():>8.4f}")
            except ValueError:
                cells.append("       –")
        for kind, model in models.items():
            for form in planning.FORMS:
                rate = learned_rate(keys, members, held, asked, absent, model, form, budget)
                cells.append(f"{rate:>{len(kind) + len(form) + 1}}")
        print("  " + " ".join(cells))


def learned_rate(keys, members, held, asked, absent, model: Model, form, budget) -> str:
    try:
        f = tamis.LearnedBloom.build(
            keys, features=members, nonmembers=held, model=model, bits_per_key=budget, form=form
        )
    except (ValueError, tamis.BuildError):
        return "too small"
    assert f.contains(keys, features=members).all()
    return f"{100 * f.contains(absent, features=asked).mean():.4f}"


def main() -> None:
    quick = "--quick" in sys.argv[1:]
    anchors(quick)
    table_kinds = {"gbt": {"kind": "gbt"}, "logistic": {"kind": "logistic"}}
    amazon = data.table("amazon_access_train")
    features = amazon.drop(["ACTION"])
    names = features.column_names
    small = {"gbt": {"kind": "gbt", "trees": 20, "leaves": 8, "buckets": 512, "categorical": names}}
    allowed = pc.equal(amazon["ACTION"], 1)
    compare(
        "Amazon access",
        features.filter(allowed),
        features.filter(pc.invert(allowed)),
        small,
        [4, 8, 12],
    )
    kdd = data.table("kdd99_10pct")
    for name, rows in (("KDD 99, de-duplicated", data.distinct(kdd)), ("KDD 99, raw", kdd)):
        if quick and name.endswith("raw"):
            continue
        rows = rows.combine_chunks()
        attack = pc.not_equal(rows["label"], "normal.")
        rows = rows.drop(["label"])
        compare(
            name,
            rows.filter(attack),
            rows.filter(pc.invert(attack)),
            {
                "gbt": {"kind": "gbt", "trees": 20, "leaves": 16},
                "logistic": table_kinds["logistic"],
            },
            [1, 2, 4, 8],
        )
    urls = data.table("urls_ebbu2017").combine_chunks()
    text = urls["url"].combine_chunks()
    phishing = urls["phishing"].combine_chunks()
    compare(
        "URLs (ebbu2017), phishing ones as members",
        text.filter(phishing),
        text.filter(pc.invert(phishing)),
        {
            "logistic": {"kind": "logistic", "buckets": 4096},
            "svm": {"kind": "svm", "buckets": 4096},
        },
        [2, 4, 8, 12],
    )


if __name__ == "__main__":
    main()
