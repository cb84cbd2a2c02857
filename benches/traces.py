"""Keys per second of each trace generator. Target: at least ten million."""

import time

from tamis import traces

N = 10**7
STREAMS = {
    "zipf 1.0": lambda: traces.zipf(N, universe=10**8),
    "zipf 0.75": lambda: traces.zipf(N, exponent=0.75, universe=10**8),
    "phase shift": lambda: traces.phase_shift(N),
    "power law": lambda: traces.power_law(N),
    "active set": lambda: traces.active_set(N),
    "uniform": lambda: traces.uniform(N, universe=10**6),
    "adversary": lambda: sum(len(q) for q in _fooled(traces.Adversary(N // 10, stored=10))),
}


def _fooled(adversary):
    for queries in adversary:
        adversary.report(queries > 2**63)
        yield queries


def main():
    print(f"{'stream':12s} {'10⁶ keys/s':>10s}")
    for name, make in STREAMS.items():
        best = 0.0
        for _ in range(3):
            start = time.perf_counter()
            made = make()
            count = made if isinstance(made, int) else len(made)
            best = max(best, count / (time.perf_counter() - start))
        print(f"{name:12s} {best / 1e6:10.1f}")


if __name__ == "__main__":
    main()
