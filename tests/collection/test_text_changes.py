"""Search indexes that change: documents come and go, and a change that fails changes nothing."""

import tempfile
import threading

import numpy as np
import pytest
from contract import fails_at_every_step
from many_sets import WORDS, share

import tamis
from tamis.text import SearchIndex


def test_documents_come_and_go(tmp_path):
    index = SearchIndex.build({"a": "fine mesh", "b": "coarse mesh"}, budget="1kB", utility=[1, 5])
    index.append("c", "wide mesh", utility=3)
    assert index.search("mesh") == ["b", "c", "a"]
    index.extend({"d": "mesh of wire", "e": ""})
    assert index.utility.tolist() == [1, 5, 3, 1, 1]
    index.drop("b")
    assert index.search("mesh") == ["c", "a", "d"]
    assert index.search("") == ["c", "a", "d", "e"]
    assert index.text("d") == "mesh of wire"
    index.save(tmp_path / "i")
    opened = SearchIndex.open(tmp_path / "i")
    assert opened.search("mesh", 2) == ["c", "a"]
    assert opened.text("d") == "mesh of wire"
    opened.drop("a")
    opened.append("f", "mesh")
    assert opened.search("mesh") == ["c", "d", "f"]
    assert list(opened.names) == ["c", "d", "e", "f"]
    for wrong, error, message in [
        (lambda: index.drop("b"), KeyError, "b"),
        (lambda: index.append("a", "x"), ValueError, "already a document named 'a'"),
        (lambda: index.append(7, "x"), TypeError, "name must be a str, not 7"),
        (lambda: index.append("g", 7), TypeError, "text must be a str, not 7"),
        (lambda: index.append("g", "x", fpr=2), ValueError, "fpr must be .* not 2"),
        (lambda: index.search(7), TypeError, "text must be a str, not 7"),
        (lambda: index.search("a", -1), ValueError, "k must be .* not -1"),
        (lambda: index.allocate(budget=3), ValueError, "sizes and weights of 4 documents"),
        (lambda: index.allocate(utility={"a": 1}), ValueError, "'c' is missing"),
        (
            lambda: index.extend({"h": "x"}, utility=[1, 2]),
            ValueError,
            "utility must have one number per document",
        ),
        (lambda: SearchIndex.build({}, stop_words=["a\nb"]), ValueError, "stop_words must be"),
    ]:
        with pytest.raises(error, match=message):
            wrong()
    assert SearchIndex.build({}).search("anything") == []


def test_answers_while_one_allocates():
    documents = {f"d{i}": f"even{i % 2} only{i}" for i in range(300)}
    index = SearchIndex.build(documents)
    stop, missed = threading.Event(), []

    def ask():
        while not stop.is_set():
            for i in (3, 150, 299):
                if index.search(f"only{i} even{i % 2}") != [f"d{i}"]:
                    missed.append(i)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for i in range(30):
        index.allocate(budget=share(index, i % 7 / 10), utility=np.arange(300) * i % 13)
        if i % 10 == 5:
            index.append(f"more{i}", "something else")
            index.drop(f"more{i}")
    stop.set()
    for thread in threads:
        thread.join()
    assert not missed


def describe(index):
    """Everything that an index shows, and what it says after it is saved and opened again."""
    with tempfile.TemporaryDirectory() as folder:
        index.save(f"{folder}/i.tamis")
        again = SearchIndex.open(f"{folder}/i.tamis", budget=index.budget)
    return [
        [
            list(i.names),
            *(each.tolist() for each in (i.counts, i.full, i.kept, i.utility, i.fprs)),
            (len(i), i.budget, i.size_in_bytes, i.size_in_bits, i.expected_fpr),
            [i.text(name) for name in i.names],
            [i.search(word, None, verify=False) for word in WORDS],
            [i.search(word) for word in WORDS],
        ]
        for i in (index, again)
    ]


def index_to_change():
    documents = {f"d{i}": " ".join(WORDS[i : i + 4]) for i in range(8)}
    return SearchIndex.build(documents, budget=3000, utility=np.arange(8))


def broken(pairs):
    """Pairs, and then a failure of their source."""
    yield from pairs
    raise OSError("the source is gone")


FAILURES = {
    "append: NaN": lambda i: i.append("new", "anchor", utility=np.nan),
    "append: negative utility": lambda i: i.append("new", "anchor", utility=-1),
    "append: taken name": lambda i: i.append("d1", "anchor"),
    "extend: over the budget": lambda i: i.extend({str(j): "anchor" for j in range(2000)}),
    "append: no text": lambda i: i.append("new", 5),
    "append: bad rate": lambda i: i.append("new", "anchor", fpr=0),
    "append: other hash": lambda i: i.append("new", "anchor", key=b"0123456789abcdef"),
    "extend: utility of one": lambda i: i.extend({"x": "bell", "y": "dial"}, utility=[1]),
    "extend: name twice": lambda i: i.extend([("x", "bell"), ("y", "dial"), ("x", "kiln")]),
    "extend: no text midway": lambda i: i.extend({"x": "bell", "y": None}),
    "extend: broken source": lambda i: i.extend(broken([("x", "bell")])),
    "allocate: small budget": lambda i: i.allocate(budget=5),
    "allocate: bad utility": lambda i: i.allocate(utility=[1, 2]),
    "drop: unknown": lambda i: i.drop("nothing"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_call_that_fails_changes_nothing(name):
    index = index_to_change()
    before = describe(index)
    with pytest.raises((ValueError, TypeError, KeyError, OSError)):
        FAILURES[name](index)
    assert describe(index) == before
    index.append("x", "anchor zebra", utility=9)
    assert index.search("zebra") == ["x"]


CHANGES = {
    "append": lambda i: i.append("new", "anchor bell", utility=3),
    "extend": lambda i: i.extend({"x": "bell", "y": "dial"}, utility=[1, 2]),
    "drop": lambda i: i.drop("d3"),
    "allocate": lambda i: i.allocate(budget=2500, utility=np.arange(8)[::-1]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_whole_wherever_it_fails(name):
    fails_at_every_step(index_to_change, CHANGES[name], describe, tamis.text)


def test_a_failed_build_leaves_the_file_of_before(tmp_path):
    path = tmp_path / "i.tamis"
    SearchIndex.build({"a": "anchor"}, path=path)
    before = path.read_bytes()
    for wrong in ({"budget": 3}, {"utility": [np.nan]}):
        with pytest.raises(ValueError, match=r"(budget|utility) must be"):
            SearchIndex.build({"b": "bell"}, path=path, **wrong)
        assert path.read_bytes() == before


def test_a_budget_of_one_bit_per_document_still_takes_appends():
    index = SearchIndex.build({f"{i}": f"word{i} other{i}" for i in range(300)})
    budget = index.min_budget + 300 // 8 + 60 * 40
    index.allocate(budget=budget)
    for i in range(40):
        index.append(f"new {i}", f"fresh{i}", utility=2.0)
        assert index.size_in_bytes <= budget
        assert f"new {i}" in index.search(f"fresh{i}")
