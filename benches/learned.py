"""Learned filters of 100,000 domains: CPU seconds to build, size and rate, by kind of model.

    python benches/learned.py

The keys are random domains of a blocklist, the nonmembers random popular domains: half of them
train the model, the others are for the plan; the rate is measured with domains that neither has
seen. The data are not part of the repository, see ``experiments/data.py``. The time includes
training, and importing what trains.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))

import data
import tamis

SEED = 1
FPR = 0.01


def domains(keys: int) -> tuple[list[str], list[str], list[str]]:
    """Return keys, as many nonmembers, and as many absent keys to query."""
    rng = np.random.default_rng(SEED)
    listed = set(data.table("blocklist_maltrail", ["indicator"]).column(0).to_pylist())
    popular = set(data.table("domains_tranco1m", ["domain"]).column(0).to_pylist()) - listed
    members = rng.choice(np.array(sorted(listed), object), keys, replace=False)
    others = rng.choice(np.array(sorted(popular), object), 2 * keys, replace=False)
    return members.tolist(), others[:keys].tolist(), others[keys:].tolist()


def build(kind: str, keys: int) -> None:
    """Build once, and print what it took; runs in its own process."""
    members, nonmembers, absent = domains(keys)
    cpu, wall = time.process_time(), time.perf_counter()
    f = tamis.LearnedBloom.build(members, nonmembers=nonmembers, kind=kind, fpr=FPR)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    rate = float(f.contains(absent).mean())
    print(json.dumps([cpu, wall, f.bits_per_key, f.expected_fpr, rate]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        data.path("blocklist_maltrail")
    except FileNotFoundError as error:
        print(f"skipped: {error}")
        return
    if options.one:
        build(options.one, options.keys)
        return
    print(f"LearnedBloom of {options.keys:,} domains, fpr={FPR}")
    print("kind        CPU s  wall s  bits/key  expected rate  measured")
    for kind in ("gbt", "logistic", "svm"):
        command = [sys.executable, __file__, "--keys", str(options.keys), "--one", kind]
        cpu, wall, bits, expected, rate = json.loads(subprocess.check_output(command))
        print(
            f"{kind:<10} {cpu:>6.2f} {wall:>7.2f} {bits:>9.3f} {expected:>14.5f} {rate:>9.5f}",
            flush=True,
        )
    plain = -np.log2(FPR)
    print(f"No filter without a model has fewer than {plain:.3f} bits per key at this rate.")


if __name__ == "__main__":
    main()
