"""Shared by the tests of cli."""

import numpy as np
from servers import postgres_url  # noqa: F401

KEYS = [f"user{i}@example.org" for i in range(2000)]


ASKED = [f"user{i}@example.org" for i in np.random.default_rng(0).zipf(1.3, 20_000) + 1900]


GROUPS = ["search build", "search query", "skip add", "skip build", "skip query", "skip stats"]


COMMANDS = {
    "advise": "advise {input}",
    "advise, a log": "advise keys.txt --queries {input}",
    "build": "build {input} --fpr 0.01 -o out.tamis",
    "build, insertions": "build {input} --kind bloom --capacity 10 --fpr 0.01 -o out.tamis",
    "build, a log": "build keys.txt --queries {input} --fpr 0.01 -o out.tamis",
    "build, stacked": "build {input} --queries log.txt --fpr 0.01 -o out.tamis",
    "dedup": "dedup {input} --window 1000",
    "demo": "demo --keys {input} --queries log.txt",
    "demo, a log": "demo --keys keys.txt --queries {input}",
    "guard": "guard shop.db --table users --key email --queries {input}",
    "plan": "plan {input} --queries log.txt --fpr 0.01",
    "plan, a log": "plan 1000 --queries {input} --fpr 0.01",
    "query": "query keys.tamis --from {input}",
    "search build": "search build {input} -o out.tamis",
    "search query": "search query {input} a",
    "skip build": "skip build {input} -c email -o out.tamis",
    "skip add": "skip add {input}",
    "skip query": "skip query {input} --where email=a",
    "skip stats": "skip stats {input}",
    "verify": "verify keys.tamis --keys {input}",
    "verify, absent": "verify keys.tamis --absent {input}",
}


def refused(result):
    code, out, err = result
    assert code == 2, (out, err)
    assert out == ""
    assert err.count("\n") == 1, err
    assert err.startswith("tamis: ")
    assert len(err) < 400
    return err
