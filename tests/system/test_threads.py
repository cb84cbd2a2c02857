"""Collections, search indexes and classifiers that several threads use at once.

The kernels of filters have a test of their own, `threads.rs`. Here one thread changes what three
others read: whatever is not being changed is always found.
"""

import threading

import numpy as np
import pytest

import tamis
from tamis.learned import train
from tamis.text import SearchIndex

ROUNDS = 25


def run(change, *uses):
    """Call `uses` over and over, each in a thread, while this one changes something in rounds."""
    stop, errors = threading.Event(), []

    def repeat(use):
        try:
            while not stop.is_set():
                use()
            use()  # and once after the last change
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=repeat, args=(use,)) for use in uses]
    for thread in threads:
        thread.start()
    try:
        for round_ in range(ROUNDS):
            change(round_)
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


@pytest.mark.parametrize("kind", ["auto", "sliced"])
@pytest.mark.parametrize("hybrid", [False, True])
def test_a_collection(tmp_path, kind, hybrid):
    fixed = {f"fixed {i}": range(1000 * i, 1000 * i + 100) for i in range(20)}
    path = tmp_path / "saved"
    c = tamis.Collection.build(fixed, kind=kind, hybrid=hybrid, path=tmp_path / "c")
    least = c.min_budget

    def change(round_):
        c.append(f"more {round_}", range(50_000 + round_, 50_100 + round_), kind=kind)
        c.allocate(
            budget=4 * least + 100 * (round_ % 7), utility=np.arange(len(c)) % 5 + round_ % 3
        )
        c.extend({f"other {round_}": range(70_000, 70_010)}, kind=kind, allocate=False)
        c.record([f"fixed {round_ % 20}"])
        c.drop([f"more {round_}", f"other {round_}"])

    def ask():
        for i in range(20):
            assert f"fixed {i}" in c.candidates(1000 * i + 7)

    def ask_many():
        keys = np.arange(20) * 1000 + 5
        assert len(c.candidates_many(keys)[0]) == 21
        assert 0 <= c.expected_fpr <= 1
        assert c.size_in_bytes > 0
        repr(c)

    def save():
        c.save(path)
        again = tamis.Collection.open(path)
        assert {f"fixed {i}" for i in range(20)} <= set(again.names)
        assert "fixed 3" in again.candidates(3007)

    run(change, ask, ask_many, save)
    assert list(c.names) == list(fixed)


def test_a_search_index(tmp_path):
    documents = {f"d{i}": f"even{i % 2} only{i}" for i in range(60)}
    index = SearchIndex.build(documents)
    path = tmp_path / "saved"

    def change(round_):
        index.append(f"more{round_}", "something else")
        index.allocate(budget=2 * index.min_budget + 500 * (round_ % 5))
        index.extend({f"other{round_}": "another text"})
        index.drop(f"more{round_}")
        index.drop(f"other{round_}")

    def search():
        for i in (3, 31, 59):
            assert index.search(f"only{i} even{i % 2}") == [f"d{i}"]

    def read():
        assert index.text("d7") == documents["d7"]
        assert 0 <= index.expected_fpr <= 1
        assert index.size_in_bytes > 0
        repr(index)

    def save():
        index.save(path)
        assert SearchIndex.open(path).search("only7") == ["d7"]

    run(change, search, read, save)


def test_classifiers_and_learned_filters():
    rng = np.random.default_rng(1)
    members, others = rng.normal(1, 1, (600, 3)), rng.normal(-1, 1, (600, 3))
    models = [train(members, others, kind=kind) for kind in ("logistic", "svm")]
    expected = [model.scores(members) for model in models]
    keys = range(600)
    f = tamis.LearnedBloom.build(
        keys, features=members, nonmembers=others, model=models[0], fpr=0.05
    )

    def score():
        for model, scores in zip(models, expected, strict=True):
            assert (model.scores(members) == scores).all()

    def ask():
        assert f.contains(keys, features=members).all()

    def copy():
        again = tamis.from_bytes(models[0].to_bytes())
        assert (again.scores(members) == expected[0]).all()

    def change(round_):
        again = tamis.from_bytes(f.copy().to_bytes())
        assert again.contains(keys, features=members).all()

    run(change, score, ask, copy)


def test_a_stable_learned_filter():
    """Its insertions change it while others query."""
    rng = np.random.default_rng(2)
    members, others = rng.normal(1, 1, (600, 3)), rng.normal(-1, 1, (600, 3))
    model = train(members[::2], others[::2], kind="logistic")
    f = tamis.StableLearned.build(
        range(300), features=members[1::2], nonmembers=others[1::2], model=model,
        bits=2**15, fpr=0.05, gap=1000, groups=2,
    )  # fmt: skip

    def change(round_):
        f.update(range(1000 * round_, 1000 * round_ + 300), features=members[1::2])

    def ask():
        assert len(f.contains(range(300), features=members[1::2])) == 300
        assert f.expected_fpr >= 0

    def save():
        assert len(tamis.from_bytes(f.to_bytes())) >= 300

    run(change, ask, ask, save)
    assert len(f) == 300 * (ROUNDS + 1)
