"""The time of planning: the slowest plans and advice over a grid of settings, in CPU seconds.

    .venv/bin/python benches/planning.py [--sample CALLS | --all] [--limit SECONDS]

Keys from 0 to 10⁹, budgets from 1 to 100 bits per key and rates down to 10⁻¹², every kind of layer,
and workloads whose known negatives are from none to all of the queries. Planning should take less
than a second, and advice less than three, wherever one is; what takes longer than ``--limit`` is
given up and printed as such.
"""

import argparse
import itertools
import random
import signal
import time
from collections.abc import Callable, Iterator

import numpy as np

import tamis

KEYS = (0, 1, 10, 1000, 10**5, 10**7, 10**9)
BUDGETS = (1, 2, 4, 7, 10, 14, 20, 40, 100)
RATES = (0.5, 0.01, 1e-4, 1e-8, 1e-12)
LAYERS = ("auto", "bloom", "cuckoo", "quotient", "fuse", "ribbon")
UNSEEN = (1.0, 0.5, 0.1, 1e-2, 1e-4, 1e-8, 1e-12, 0.0)


class TooSlow(Exception):
    """A call that was given up."""


def workloads() -> Iterator[tuple[str, tamis.Workload]]:
    shapes = {
        "one value": np.ones(1),
        "ten equal values": np.ones(10),
        "10^4 equal values": np.ones(10**4),
        "10^5 values, 1/rank": 1 / np.arange(1, 10**5 + 1),
        "10^6 values, 1/rank^2": np.arange(1.0, 10**6 + 1) ** -2,
    }
    for (name, shape), unseen in itertools.product(shapes.items(), UNSEEN):
        yield f"{name}, {unseen:g} unseen", tamis.Workload.from_shape(shape, unseen=unseen)
    for exponent, universe, sample in (
        (0.0, 10**6, 10**6),
        (0.5, 10**8, 10**7),
        (0.75, 10**8, 5 * 10**7),
        (1.0, 10**3, 10**3),
        (1.0, 10**8, 5 * 10**7),
        (1.0, 10**8, 10**8),
        (1.5, 10**9, 10**5),
        (2.0, 10**6, 10**6),
        (3.0, 10**8, 5 * 10**7),
        (16.0, 10**4, 10**4),
    ):
        shape = f"Zipf {exponent:g} of {universe:,}, {sample:,} known"
        yield shape, tamis.Workload.zipf(exponent, universe, sample)


def settings(sample: int | None, seed: int) -> Iterator[tuple[str, str, Callable[[], object]]]:
    """Some calls of the grid, or all: what is called, a description, and the call."""
    calls = []
    for (name, w), keys in itertools.product(list(workloads()), KEYS):
        goals = [{"bits_per_key": b} for b in BUDGETS] + [{"fpr": r} for r in RATES]
        for goal, layer in itertools.product(goals, LAYERS):
            for request in ({}, {"last": "alternating"}, {"updates": True}):
                calls.append(("plan", name, w, keys, {**goal, "layer": layer, **request}))
        for bits in BUDGETS:
            for needs in ((), ("store",), ("insert",)):
                calls.append(("advise", name, w, keys, {"bits_per_key": bits, "needs": needs}))
            changing = {"bits_per_key": bits, "needs": ("store",), "turnover": 1}
            calls.append(("advise", name, w, keys, changing))
    if sample is not None:
        calls = random.Random(seed).sample(calls, min(sample, len(calls)))
    for function, name, w, keys, options in calls:
        described = ", ".join(f"{key}={value!r}" for key, value in options.items())
        text = f"{function}({keys:,}, {name}, {described})"
        made = getattr(tamis, function)
        yield function, text, lambda made=made, k=keys, w=w, request=options: made(k, w, **request)


def seconds(call: Callable[[], object], limit: float) -> float:
    """The CPU time of a call; `limit` if it takes longer. A plan that does not exist is fine."""
    signal.setitimer(signal.ITIMER_VIRTUAL, limit)
    start = time.process_time()
    try:
        call()
    except ValueError:
        pass
    except TooSlow:
        return limit
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=2000, help="how many calls of the grid")
    parser.add_argument("--all", action="store_true", help="the whole grid, which takes hours")
    parser.add_argument("--seed", type=int, default=0, help="which sample")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds after which to give up")
    options = parser.parse_args()

    def give_up(*_: object) -> None:
        raise TooSlow

    signal.signal(signal.SIGVTALRM, give_up)
    tamis.plan(1000, tamis.Workload.zipf(1.0, 10**4), bits_per_key=10, layer="bloom")  # imports
    took: dict[str, list[tuple[float, str]]] = {"plan": [], "advise": []}
    for function, text, call in settings(None if options.all else options.sample, options.seed):
        took[function].append((seconds(call, options.limit), text))
    for function, found in took.items():
        times = sorted(found, reverse=True)
        total = sum(time for time, _ in times)
        print(f"{function}: {len(times):,} calls, {total / max(len(times), 1):.3f} s on average")
        for time_taken, text in times[:10]:
            mark = " (given up)" if time_taken >= options.limit else ""
            print(f"  {time_taken:6.2f} s{mark}  {text}")


if __name__ == "__main__":
    main()
