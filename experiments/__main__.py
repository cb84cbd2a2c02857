"""Run the experiments: ``python -m experiments [--quick] [--only stacked/table2]``."""

from __future__ import annotations

import argparse
import csv
import importlib
from pathlib import Path

from experiments import data
from experiments.evidence import EXPERIMENTS, PAPERS

HERE = Path(__file__).parent
BUILD = HERE.parent / "build" / "experiments"


def declared() -> None:
    """Import every module that declares experiments."""
    for paper in PAPERS:
        for path in sorted((HERE / paper).glob("*.py")):
            if "@experiment(" in path.read_text():
                importlib.import_module(f"experiments.{paper}.{path.stem}")


def main() -> None:
    """Run the experiments that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    declared()
    for name, each in EXPERIMENTS.items():
        if not name.startswith(options.only):
            continue
        if missing := [
            name for name in each.data if not (data.FOLDER / f"{name}.parquet").exists()
        ]:
            print(f"{name}: left out, {', '.join(missing)} missing")
            continue
        print(name, flush=True)
        found = each.run(options.quick)
        target = BUILD / f"{name}.csv"
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(found.rows[0]))
            writer.writeheader()
            writer.writerows(found.rows)
        if found.draw:
            from matplotlib.figure import Figure

            figure = Figure(figsize=(6.4, 4), layout="constrained")
            found.draw(figure)
            figure.savefig(target.with_suffix(".png"), dpi=120)
        for verdict in found.verdicts:
            print("  ", verdict, flush=True)


if __name__ == "__main__":
    main()
