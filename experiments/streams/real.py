"""Stable learned filters on real data: rate and false negatives against bits, gaps and drift.

    .venv/bin/python experiments/streams/real.py [--quick]

Members are inserted as a stream and queried 2,000 insertions later; then all absent keys are
queried. The classifier is trained on 20 % and its bits are counted. See `data.py` for where the
data are.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

sys.path.insert(0, str(Path(__file__).parents[1]))

import data
import tamis
from tamis.learned import train
from tamis.planning.stable import scores as stable_scores

SEED, GAP, RATE, STEP = 7, 2000, 0.05, 100
RATES = (0.005, 0.01, 0.05, 0.1, 0.2)
PAPER_BITS = 2**18  # bits of the counters in the paper's main result
TABLES = {"kind": "gbt" if find_spec("lightgbm") else "logistic"}
TEXT = {"kind": "logistic", "buckets": 4096}


def sources(quick):
    """Yield name, members, absent keys, and training options."""
    amazon = data.table("amazon_access_train").combine_chunks()
    allowed = pc.equal(amazon["ACTION"], 1)
    rows = amazon.drop(["ACTION"])
    names = {**TABLES, "categorical": rows.column_names, "trees": 20, "leaves": 8}
    yield "Amazon", rows.filter(allowed), rows.filter(pc.invert(allowed)), names
    kdd = data.table("kdd99_10pct")
    for name, table in (("KDD 99, de-duplicated", data.distinct(kdd)), ("KDD 99, raw", kdd)):
        if quick and table is kdd:
            continue
        table = table.combine_chunks()
        attack = pc.not_equal(table["label"], "normal.")
        table = table.drop(["label"])
        yield name, table.filter(attack), table.filter(pc.invert(attack)), TABLES
    urls = data.table("urls_ebbu2017").combine_chunks()
    text, phishing = urls["url"].combine_chunks(), urls["phishing"].combine_chunks()
    yield "URLs", text.filter(phishing), text.filter(pc.invert(phishing)), TEXT


def split(rows, count, rng):
    """Return ``count`` random rows, and the others in random order."""
    order = rng.permutation(len(rows))
    if isinstance(rows, np.ndarray):
        return rows[order[:count]], rows[order[count:]]
    return rows.take(pa.array(order[:count])), rows.take(pa.array(order[count:]))


def measured(ask, members, absent, gap=GAP):
    """Return the FPR, and the FNR at gaps around ``gap``; ``ask`` takes keys and scores."""
    keys = np.arange(len(members))
    lost = asked = 0
    step = min(STEP, gap)  # so that what is queried was inserted
    for first in range(0, len(keys), step):
        part = keys[first : first + step]
        ask(part, members[part], insert=True)
        if first >= gap and len(part) == step:
            then = keys[first - gap + step // 2 :][:step]
            lost += len(then) - int(ask(then, members[then]).sum())
            asked += len(then)
    others = np.arange(10**9, 10**9 + len(absent))
    return float(ask(others, absent).mean()), lost / max(asked, 1)


def plain(f):
    """Wrap a filter that needs no scores."""
    return lambda keys, _, insert=False: f.update(keys) if insert else f.contains(keys)


def scored(f):
    """Wrap a stable learned filter, with precomputed scores."""
    ask = tamis._native.stable_learned_pass
    return lambda keys, scores, insert=False: ask(f._kernel, keys, scores, insert)


class Given:
    """A classifier whose rows are the scores themselves."""

    def predict_proba(self, scores):
        return scores


def learned(stream, others, bits):
    """Wrap a learned Bloom filter of the whole stream: one threshold, a backup Bloom filter."""
    keys = np.arange(len(stream))
    f = tamis.LearnedBloom.build(
        keys,
        features=stream,
        nonmembers=others,
        model=Given(),
        bits_per_key=bits / len(keys),
        form="simple",
        filter=tamis.Bloom,
        layout="standard",
    )
    return lambda keys, scores, insert=False: None if insert else f.contains(keys, features=scores)


def filters(model, stream, members, others, bits):
    """Yield filters by name: the wrapped filter (None if the bits do not suffice), and its size."""
    bloom = tamis.Bloom(max(1, bits // 10), bits_per_key=10, layout="standard")
    yield "BF", plain(bloom), bloom.size_in_bits
    try:
        yield "LBF", learned(stream, others, bits), bits + model.size_in_bits
    except (ValueError, tamis.BuildError):
        yield "LBF", None, bits
    yield "SBF", plain(tamis.StableBloom(GAP, fpr=RATE, bits=bits)), bits
    oldest = GAP + STEP // 2
    window = tamis.Windowed(oldest, bits_per_key=min(bits / oldest, 400))
    yield "Windowed", plain(window), window.size_in_bits
    for name, groups, method in (
        ("s-SLBF", 1, "optimal"),
        ("g-SLBF, paper", None, "paper"),
        ("g-SLBF, optimal", None, "optimal"),
    ):
        f = grouped(model, members, others, bits, groups, method)
        if f is None:
            yield name, None, bits
        else:
            yield name, scored(f), f.size_in_bits


def grouped(model, members, others, bits, groups, method, rate=RATE):
    """Return a stable learned filter, or None if the bits do not suffice for its groups."""
    settings = {"bits": bits, "fpr": rate, "gap": GAP, "groups": groups, "method": method}
    try:
        return tamis.StableLearned(model, tamis.StableLearned.plan(members, others, **settings))
    except ValueError:
        return None


def alike(fpr, fnr):
    """Return the bits of a stable Bloom filter with these rates (at least 0.001)."""
    f = tamis.StableBloom(GAP, fpr=min(max(fpr, 1e-3), 0.5), fnr=min(max(fnr, 1e-3), 0.99))
    return f"{f.size_in_bits:,}"


def compare(name, members, others, settings, quick):
    """Figures 8 to 11 (bits, parameters, scores, stability), 13 (gap), 14 (labels flipped)."""
    sizes = [2**14, 2**16] if quick else [2**14, 2**16, 2**18, 2**20]
    gaps = [100, 2000] if quick else [10, 100, 500, 2000]
    rng = np.random.default_rng(SEED)
    trained, stream = split(members, len(members) // 5, rng)
    strangers, absent = split(others, len(others) // 5, rng)
    model = train(trained, strangers, **settings)
    inside, outside = model.scores(stream), model.scores(absent)
    # Planning for a rate of 0.05 takes hundreds of absent keys, which are not queried.
    aside, outside = split(outside, max(len(outside) // 10, min(1000, len(outside) // 2)), rng)
    held, _ = split(inside, len(inside) // 10, rng)
    print(f"\n{name}: {len(inside):,} members, {len(outside):,} absent, gap {GAP:,}, rate {RATE}")
    print(f"  model: {settings['kind']}, {model.size_in_bits / 1000:.0f} Kbit")
    for label, scores in (("members", inside), ("absent", outside)):
        shares = np.histogram(scores, np.linspace(0, 1, 11))[0] / len(scores)
        print(f"  scores of {label:8}", " ".join(f"{share:.3f}" for share in shares), "(Fig. 10)")
    print("  groups by the monotonicity test:", stable_scores.monotone(held, aside))
    print(
        "  counters, bits  filter            with model       FPR     FNR  SBF alike, bits (Fig. 8)"
    )
    for bits in sizes:
        for label, ask, whole in filters(model, inside, held, aside, bits):
            if ask is None:
                print(f"  {bits:14,}  {label:16} too few bits for its groups")
                continue
            fpr, fnr = measured(ask, inside, outside)
            other = alike(fpr, fnr) if "SLBF" in label else ""
            print(f"  {bits:14,}  {label:16} {whole:11,} {fpr:9.5f} {fnr:7.4f}  {other}")
    known = (model, held, aside, inside, outside)
    headline(*known)
    counts, rates = ([2, 6], [0.01, 0.1]) if quick else ([2, 4, 6, 8, 10], RATES)
    parameters(*known, sizes, counts, rates)
    stability(*known, [2**10, 2**14] if quick else [2**10, 2**12, 2**14, 2**16, 2**18])
    print(f"  gap    filter (counters of {sizes[1]:,} bits)  FPR     FNR  (Fig. 13)")
    for gap in gaps:
        for label, ask, _ in filters(model, inside, held, aside, sizes[1]):
            if ask is not None and label in ("SBF", "s-SLBF", "g-SLBF, optimal"):
                fpr, fnr = measured(ask, inside, outside, gap)
                print(f"  {gap:5,}  {label:28} {fpr:8.5f} {fnr:7.4f}")
    print(f"  flipped  filter (counters of {sizes[1]:,} bits)  FPR     FNR  (Fig. 14)")
    for flip in (0.05, 0.2, 0.5):
        mixed, asked = flipped(inside, outside, flip, rng), flipped(outside, inside, flip, rng)
        for label, ask, _ in filters(model, inside, held, aside, sizes[1]):
            if ask is not None and label in ("s-SLBF", "g-SLBF, optimal"):
                fpr, fnr = measured(ask, mixed, asked)
                print(f"  {flip:7.2f}  {label:26} {fpr:8.5f} {fnr:7.4f}")


def headline(model, held, aside, inside, outside):
    """Print the bits of a stable Bloom filter at equal FPR, as in the paper, and at equal rates."""
    for method in ("paper", "optimal"):
        f = grouped(model, held, aside, PAPER_BITS, None, method)
        if f is None:
            continue
        fpr, fnr = measured(scored(f), inside, outside)
        bits = f.size_in_bits
        print(f"  g-SLBF, {method}, {bits:,} bits with model: FPR {fpr:.5f}, FNR {fnr:.4f}")
        if method == "paper":
            # As in the paper: a filter planned for the same rate, which is better only as long as
            # it is far from full.
            sizes = (2**power for power in range(10, 29))
            plain_filters = ((n, tamis.StableBloom(GAP, fpr=RATE, bits=n)) for n in sizes)
            rates = ((n, *measured(plain(each), inside, outside)) for n, each in plain_filters)
            found = next((row for row in rates if row[1] <= fpr), None)
            size = "more than 2**28" if found is None else f"{found[0]:,}"
            share = "" if found is None else f", FNR {found[2]:.4f}: {bits / found[0]:.1%} of it"
            print(f"    an SBF with its FPR takes {size} bits{share} (paper: 2.6 to 3.5 %)")
        alike = tamis.StableBloom(GAP, fpr=min(max(fpr, 1e-4), 0.5), fnr=min(max(fnr, 1e-3), 0.99))
        share = bits / alike.size_in_bits
        print(
            f"    an SBF with its FPR and FNR takes {alike.size_in_bits:,} bits: {share:.1%} of it"
        )


def parameters(model, held, aside, inside, outside, sizes, counts, rates):
    """Figure 9: FNR against the rate, the number of groups, and bits."""
    print(f"  rate    FNR by the paper, optimal (6 groups, counters of {sizes[1]:,} bits, Fig. 9a)")
    methods = ("paper", "optimal")

    def denied(bits, groups, rate):
        found = [grouped(model, held, aside, bits, groups, method, rate) for method in methods]
        return "  ".join(
            f"{measured(scored(f), inside, outside[:1])[1]:.4f}" if f is not None else "  –   "
            for f in found
        )

    for rate in rates:
        print(f"  {rate:5.3f}   {denied(sizes[1], 6, rate)}")
    print("  groups  bits: FNR by the paper, optimal (Fig. 9b to 9d)")
    for groups in counts:
        cells = [f"{bits:,}: {denied(bits, groups, RATE)}" for bits in sizes]
        print(f"  {groups:6}  {'   '.join(cells)}")


def stability(model, held, aside, inside, outside, sizes):
    """Figure 11: the rate over insertions, six groups, target rate 0.1."""
    moments = [m for m in (4000, 8000, 12_000, 16_000, 20_000) if m < len(inside)]
    moments.append(len(inside))
    print("  FPR after insertions, 6 groups, rate 0.1 (Fig. 11):", *(f"{m:,}" for m in moments))
    others = np.arange(10**9, 10**9 + len(outside))
    for bits in sizes:
        f = grouped(model, held, aside, bits, 6, "optimal", 0.1)
        if f is None:
            print(f"  {bits:9,} bits: too few for its groups")
            continue
        ask, done, rates = scored(f), 0, []
        for moment in moments:
            keys = np.arange(done, moment)
            ask(keys, inside[keys], insert=True)
            rates.append(f"{ask(others, outside).mean():.4f}")
            done = moment
        print(f"  {bits:9,} bits:", *rates, f"predicted {f.stable_fpr:.4f}")


def flipped(scores, others, share, rng):
    """Return scores of which a fraction is replaced by scores of the other class."""
    return np.where(rng.random(len(scores)) < share, rng.choice(others, len(scores)), scores)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    warnings.simplefilter(
        "ignore", tamis.CapacityWarning
    )  # a Bloom filter in a stream exceeds its capacity
    for source in sources(quick):
        compare(*source, quick)


if __name__ == "__main__":
    main()
