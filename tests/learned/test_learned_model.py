"""Classifiers: scores against a slow twin, training, and forged bytes."""

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import frame, grams, hash_key, leaf_of, oblivious_leaf_of, parts, reduce

import tamis
from tamis.learned import Model, Scorer, flat, scorer, train

pa = pytest.importorskip("pyarrow")


def sigmoid(x):
    return 1 / (1 + math.exp(-max(-40, min(40, x))))


@st.composite
def trees(draw, features):
    """A tree whose children come after their parents."""
    count = draw(st.integers(0, 12))
    level = st.integers(0, 5)
    nodes = []
    # Each node takes a random open side of the ones before it; what stays open are leaves.
    open_sides = []
    for i in range(count):
        if i:
            side = open_sides.pop(draw(st.integers(0, len(open_sides) - 1)))
            nodes[side[0]][2 + side[1]] = i
        nodes.append([draw(st.integers(0, features - 1)), draw(level), None, None])
        open_sides += [(i, 0), (i, 1)]
    for leaf, (parent, side) in enumerate(open_sides):
        nodes[parent][2 + side] = 255 - leaf
    leaves = draw(st.lists(st.integers(-500, 500), min_size=count + 1, max_size=count + 1))
    return [tuple(node) for node in nodes], leaves


@st.composite
def oblivious_trees(draw, features):
    depth = draw(st.integers(0, 7))
    split = st.tuples(st.integers(0, features - 1), st.integers(0, 5))
    splits = draw(st.lists(split, min_size=depth, max_size=depth))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    return splits, rng.integers(-500, 500, 2**depth).tolist()


@pytest.mark.parametrize("oblivious", [False, True])
@given(data=st.data())
def test_trees_lead_where_walking_leads(oblivious, data):
    tree, leaf_in = (oblivious_trees, oblivious_leaf_of) if oblivious else (trees, leaf_of)
    features = [flat.Number(0, np.float32([0, 1, 2, 3])) for _ in range(3)]
    drawn = data.draw(st.lists(tree(3), min_size=1, max_size=4))
    forest = flat.Forest(
        [flat.Tree(list(nodes), [float(leaf) for leaf in leaves]) for nodes, leaves in drawn],
        0.25,
        oblivious,
    )
    model = Model._of(flat.forest(features, np.empty(0), forest, 7))
    rows = np.random.default_rng(data.draw(st.integers(0, 99))).integers(-1, 6, (300, 3))
    scores = model.scores(rows)
    most = max((abs(leaf) for _, leaves in drawn for leaf in leaves), default=0)
    for row, score in zip(rows.tolist(), scores, strict=True):
        levels = [sum(value > t for t in range(4)) for value in row]
        total = sum(leaf_in(tree, levels) for tree in drawn)
        assert math.isclose(score, sigmoid(0.25 + total), rel_tol=1e-4 * (1 + most), abs_tol=1e-5)


@given(st.integers(0, 127), st.integers(0, 99))
def test_a_level_is_how_many_thresholds_are_exceeded(count, seed):
    rng = np.random.default_rng(seed)
    thresholds = np.unique(rng.normal(size=count).astype(np.float32))
    if count > 1:
        thresholds[[0, -1]] = -np.inf, np.inf
    tree = flat.Tree([(0, i, 255 - i, i + 1) for i in range(len(thresholds))], [])
    tree.nodes[-1:] = [(*node[:3], 255 - len(thresholds)) for node in tree.nodes[-1:]]
    tree.leaves = np.linspace(-1, 1, len(thresholds) + 1).tolist()
    feature = flat.Number(0, thresholds)
    model = Model._of(flat.forest([feature], np.empty(0), flat.Forest([tree]), 1))
    special = np.float32([np.nan, np.inf, -np.inf, 0])
    rows = np.concatenate([special, thresholds, rng.normal(size=150).astype(np.float32)])
    levels = (rows[:, None] > thresholds).sum(axis=1)
    wanted = [sigmoid(tree.leaves[level]) for level in levels]
    assert np.abs(model.scores(rows[:, None]) - wanted).max() < 1e-4


@given(st.lists(st.binary(max_size=300), max_size=9), st.integers(1, 8), st.integers(0, 4))
def test_text_is_scored_by_its_grams(texts, shortest, more):
    longest = min(shortest + more, 8)
    weights = np.random.default_rng(1).integers(-127, 128, 50).astype(float)
    weights[0] = 127
    model = Model._of(flat.linear(flat.Grams(shortest, longest, 50), weights / 127, -0.5, 3))
    for text, score in zip(texts, model.scores(texts), strict=True):
        found = list(grams(text, shortest, longest, 50))
        total = sum(weights[bucket] for bucket in found) / 127
        wanted = sigmoid(total / math.sqrt(max(len(found), 1)) - 0.5)
        assert math.isclose(score, wanted, rel_tol=1e-5, abs_tol=1e-6)


def test_text_trees_count_grams_and_length():
    grams_of = flat.Grams(1, 2, 40)
    used = np.array([3, 17, 40])
    tree = flat.Tree([(0, 0, 255, 1), (2, 4, 254, 253)], [1.0, 2.0, 3.0])
    model = Model._of(flat.forest(grams_of, used, flat.Forest([tree]), 1))
    for text in [b"", b"a", b"abcdef", b"zz" * 300]:
        found = list(grams(text, 1, 2, 40))
        levels = [found.count(3), found.count(17), len(text)]
        wanted = sigmoid(leaf_of((tree.nodes, tree.leaves), [min(x, 127) for x in levels]))
        assert math.isclose(model.scores([text])[0], wanted, rel_tol=1e-4)


def test_every_form_of_text_has_the_same_score():
    model = train([f"user-{i}" for i in range(300)], [f"{i}.com" for i in range(300)], kind="svm")
    texts = ["user-5", "ünï", "", "long" * 100]
    wanted = model.scores(texts).tolist()
    forms = [
        [text.encode() for text in texts],
        np.array(texts),
        np.array(texts, dtype=object),
        pa.array(texts),
        pa.array(texts, pa.large_string()),
        pa.array(texts, pa.string_view()),
        pa.array(texts).dictionary_encode(),
        pa.chunked_array([texts[:1], texts[1:]]),
        pa.array([text.encode() for text in texts], pa.binary()),
    ]
    for form in forms:
        assert model.scores(form).tolist() == wanted
    numbers = [5, -7, 2**63]
    wanted = model.scores([str(number) for number in numbers]).tolist()
    assert model.scores(numbers).tolist() == wanted
    for array in (np.array([5, -7]), np.array([5, -7], ">i2"), pa.array([5, -7], pa.int8())):
        assert model.scores(array).tolist() == wanted[:2]
    assert model.scores(np.array([2**63], np.uint64)).tolist() == wanted[2:]
    for bad in ([None], ["a", 1.5], pa.array([1.5])):
        with pytest.raises(TypeError):
            model.scores(bad)


def table(n, seed):
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "size": pa.array(rng.normal(seed, 1, n)),
            "port": pa.array(rng.integers(0, 9, n) * (1 + seed)),
            "flag": pa.array(rng.choice(["a", "b", f"only{seed}"], n)),
        }
    )


def test_every_form_of_a_table_has_the_same_score():
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    members, others = table(800, 0), table(800, 1)
    model = train(members, others, kind="logistic")
    asked = table(300, 1)
    wanted = model.scores(asked)
    shuffled = asked.select(["flag", "size", "port"])
    encoded = asked.set_column(2, "flag", asked["flag"].combine_chunks().dictionary_encode())
    narrow = asked.set_column(1, "port", asked["port"].cast(pa.int8()))
    chunks = pa.concat_tables([asked.slice(0, 131), asked.slice(131)])
    for form in (
        asked.to_pandas(),
        polars.from_arrow(asked),
        shuffled,
        encoded,
        narrow,
        chunks,
        asked.to_batches()[0],
    ):
        assert (model.scores(form) == wanted).all()
    assert isinstance(asked.to_pandas(), pandas.DataFrame)
    assert wanted.dtype == np.float32
    assert model.scores(members).mean() > 0.8 > 0.2 > model.scores(others).mean()
    with pytest.raises(TypeError, match="no column with the name of the model's feature 2"):
        model.scores(asked.drop(["flag"]))
    with pytest.raises(TypeError, match="'size' is text where the model has numbers"):
        model.scores(asked.set_column(0, "size", asked["flag"]))
    with pytest.raises(TypeError, match="null"):
        model.scores(asked.set_column(2, "flag", pa.array([None] * 300, pa.string())))


def test_arrays_of_any_number_type_agree():
    rng = np.random.default_rng(3)
    near, far = rng.integers(0, 50, (500, 4)), rng.integers(40, 90, (500, 4))
    model = train(near, far, kind="logistic")
    wanted = model.scores(far)
    for kind in (np.float32, np.float64, np.uint8, np.int16, np.uint64):
        assert (model.scores(far.astype(kind)) == wanted).all()
    assert (model.scores(np.asfortranarray(far)) == wanted).all()
    assert (model.scores(far[::-1]) == wanted[::-1]).all()
    assert (model.scores(far.tolist()) == wanted).all()
    missing = far.astype(float)
    missing[:, 1] = np.nan
    lowest = far.copy()
    lowest[:, 1] = -1
    assert (model.scores(missing) == model.scores(lowest)).all()
    with pytest.raises(TypeError, match="features has 3 columns; the model reads 4"):
        model.scores(far[:, :3])
    with pytest.raises(TypeError, match="buffer format"):
        model.scores(far.astype(complex))


def test_boosted_trees_learn_and_score_as_lightgbm_does():
    lightgbm = pytest.importorskip("lightgbm")
    rng = np.random.default_rng(5)
    rows = rng.integers(0, 100, (4000, 3))
    inside = (rows[:, 0] > 30) ^ (rows[:, 1] > 60)
    model = train(rows[inside], rows[~inside], trees=20, leaves=8)
    again = train(rows[inside], rows[~inside], trees=20, leaves=8)
    assert model.to_bytes() == again.to_bytes()
    fresh = rng.integers(0, 100, (4000, 3))
    truth = (fresh[:, 0] > 30) ^ (fresh[:, 1] > 60)
    scores = model.scores(fresh)
    assert ((scores > 0.5) == truth).mean() > 0.99
    ordered = np.concatenate([rows[inside], rows[~inside]]).astype(float)
    labels = np.repeat([1, 0], [inside.sum(), (~inside).sum()])
    settings = {
        "objective": "binary",
        "num_leaves": 8,
        "min_data_in_bin": 1,
        "deterministic": True,
        "force_row_wise": True,
        "seed": 0,
        "verbosity": -1,
    }
    theirs = lightgbm.train(settings, lightgbm.Dataset(ordered, labels), 20).predict(fresh)
    assert np.abs(theirs - scores).max() < 1e-3


def test_oblivious_trees_learn_and_score_as_catboost_does():
    catboost = pytest.importorskip("catboost")
    rng = np.random.default_rng(5)
    rows = rng.integers(0, 100, (4000, 3))
    inside = (rows[:, 0] > 30) ^ (rows[:, 1] > 60)
    settings = {"library": "catboost", "trees": 20, "leaves": 8}
    model = train(rows[inside], rows[~inside], **settings)
    assert model.to_bytes() == train(rows[inside], rows[~inside], **settings).to_bytes()
    fresh = rng.integers(0, 100, (4000, 3))
    truth = (fresh[:, 0] > 30) ^ (fresh[:, 1] > 60)
    scores = model.scores(fresh)
    assert ((scores > 0.5) == truth).mean() > 0.99
    theirs = catboost.CatBoostClassifier(
        iterations=20,
        depth=3,
        learning_rate=0.1,
        border_count=254,
        bootstrap_type="No",
        random_strength=0,
        boosting_type="Plain",
        random_seed=0,
        allow_writing_files=False,
        verbose=False,
    )
    theirs.fit(
        np.concatenate([rows[inside], rows[~inside]]).astype(np.float32),
        np.repeat([1, 0], [inside.sum(), (~inside).sum()]),
    )
    assert np.abs(theirs.predict_proba(fresh.astype(np.float32))[:, 1] - scores).max() < 1e-3
    assert (scorer(theirs).scores(fresh.astype(np.float32)) > 0.5).mean() > 0.3
    branching = 8 * 20 * (7 * 5 + 8 * 2)
    assert model.size_in_bits < branching


@pytest.mark.parametrize("library", ["lightgbm", "catboost"])
def test_boosted_trees_on_categories_and_text(library):
    pytest.importorskip(library)
    members, others = table(800, 0), table(800, 1)
    model = train(members, others, trees=5, categorical=["port"], library=library)
    assert model.scores(table(300, 0)).mean() > 0.6 > 0.4 > model.scores(table(300, 1)).mean()
    names = [f"user-{i}" for i in range(400)]
    model = train(
        names, [f"{i}.example.com" for i in range(400)], trees=5, buckets=64, library=library
    )
    assert model.scores(["user-999"])[0] > 0.6 > 0.4 > model.scores(["999.example.com"])[0]


def test_a_model_is_saved_without_what_trained_it(tmp_path):
    model = train(table(100, 0), table(100, 1), kind="logistic")
    model.save(tmp_path / "m")
    opened = tamis.load(tmp_path / "m", mmap=True)
    assert type(opened) is Model
    assert repr(opened) == repr(model)
    assert (
        opened.size_in_bits
        == model.size_in_bits
        == 8 * (16 + len(parts(model.to_bytes())[6][0][2]))
    )
    for twin in (opened, model.copy(), tamis.from_bytes(model.to_bytes())):
        assert twin.to_bytes() == model.to_bytes()
        assert (twin.scores(table(50, 1)) == model.scores(table(50, 1))).all()


def test_what_cannot_be_learned_from():
    with pytest.raises(ValueError, match="kind must be 'gbt', 'logistic' or 'svm', not 'forest'"):
        train(["a"], ["b"], kind="forest")
    with pytest.raises(ValueError, match="library must be 'lightgbm' or 'catboost', not"):
        train(["a"], ["b"], library="xgboost")
    with pytest.raises(ValueError, match="members must not be empty"):
        train([], ["b"], kind="logistic")
    with pytest.raises(ValueError, match="nonmembers must not be empty"):
        train(np.ones((3, 2)), np.ones((0, 2)), kind="logistic")
    with pytest.raises(TypeError, match="both tables or both keys"):
        train(["a"], np.ones((3, 2)))
    with pytest.raises(TypeError, match="must have the same columns"):
        train(np.ones((3, 1)), np.ones((3, 2)), kind="logistic")
    with pytest.raises(ValueError, match="leaves must be from 2 to 128, not 129"):
        train(["a"], ["b"], leaves=129)
    with pytest.raises(ValueError, match=r"categorical must contain .* not 'x'"):
        train(np.ones((3, 1)), np.ones((3, 1)), kind="logistic", categorical=["x"])
    with pytest.raises(ValueError, match=r"ngrams must be lengths from 1 to 8, not \(0, 4\)"):
        train(["a"], ["b"], kind="logistic", ngrams=(0, 4))


class Stub:
    def __init__(self, answer):
        self.answer = answer

    def predict_proba(self, rows):
        return np.array(self.answer)


def test_foreign_classifiers_are_checked():
    assert scorer(Stub([[0.25, 0.75]])).scores([1]).tolist() == [0.75]
    for answer, match in (
        ([float("nan")], r"must return scores from 0 to 1, not nan \(row 0\)"),
        ([0.5, 1.5], r"not 1.5 \(row 1\)"),
        ([-0.1, 0], r"not -0.1 \(row 0\)"),
        ([0.5] * 3, "must return 2 scores, one per row, not 3"),
        ([[0.1, 0.2, 0.7]] * 2, r"shape \(2, 3\)"),
    ):
        rows = [1, 2] if len(answer) != 1 else [1]
        with pytest.raises(ValueError, match=match):
            Scorer(Stub(answer)).scores(rows)


def models():
    """A model of each form, by hand."""
    number = flat.Number(7, np.float32([-1, 0.5, 2]))
    category = flat.Category(9, 3, np.arange(16, dtype=np.uint8) % 3)
    tree = flat.Tree([(0, 1, 1, 254), (1, 0, 255, 253)], [0.5, -1.0, 2.0])
    weights = np.linspace(-1, 1, 7)
    text = flat.Grams(1, 3, 20)
    yield "linear", flat.linear([number, category], weights, 0.1, 10)
    yield "text", flat.linear(text, np.linspace(-1, 1, 20), 0.1, 10)
    depths = flat.Tree([(0, 1), (1, 0)], [0.5, -1.0, 2.0, 1.5])
    for name, forest in (
        ("trees", flat.Forest([tree], 0.1)),
        ("oblivious", flat.Forest([depths], 0.1, oblivious=True)),
    ):
        yield name, flat.forest([number, category], np.empty(0), forest, 10)
        yield f"text-{name}", flat.forest(text, np.array([2, 20]), forest, 10)


@pytest.mark.parametrize(("name", "kernel"), list(models()), ids=[name for name, _ in models()])
@given(data=st.data())
def test_bytes_that_lie(name, kernel, data):
    """Refused, or a model whose scores are numbers from 0 to 1."""
    kind, hash_id, tag, count, capacity, values, contents = parts(Model._of(kernel).to_bytes())
    type_, piece, content = contents[0]
    content = bytearray(content)
    for _ in range(data.draw(st.integers(0, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([len(content), len(content) // 2, 0]))
    if data.draw(st.booleans()):
        number = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2, 3, 2**32, 2**63]))
        values[data.draw(st.integers(0, 4))] = data.draw(number)
    bad = frame(kind, hash_id, tag, count, capacity, values, [(type_, piece, bytes(content[:cut]))])
    try:
        model = tamis.from_bytes(bad)
    except tamis.FormatError:
        return
    rows = ["a", "bcd"] * 100 if model.reads == "text" else np.zeros((200, values[2]), np.int64)
    scores = model.scores(rows)
    assert ((scores >= 0) & (scores <= 1)).all()
    assert tamis.from_bytes(model.to_bytes()).to_bytes() == model.to_bytes()


def test_a_tree_that_leads_back_is_refused():
    leaves = struct.pack("<3h", 1, 2, 3)
    number = flat.Number(0, np.float32([0])).to_bytes()
    second = (0, 0, 254, 253)
    for first in [(0, 0, 0, 255), (0, 0, 2, 255), (0, 0, 1, 252), (1, 0, 1, 255)]:
        nodes = [first, second]
        packed = b"".join(struct.pack("<HBBB", *node) for node in nodes)
        payload = number + struct.pack("<IB", 1, 2) + packed + leaves
        with pytest.raises(tamis.FormatError, match="the model is damaged"):
            tamis._native.Classifier._from_flat(0, 1, 1, 1.0, 0.0, 1, payload)


def test_categories_choose_buckets_by_hash():
    category = flat.Category(0, 3, np.arange(16, dtype=np.uint8) % 3)
    model = Model._of(flat.linear([category], np.array([-1.0, 0.0, 1.0]), 0.0, 1))
    values = ["tcp", "udp", "x", "", "é"]
    for value, score in zip(values, model.scores(pa.array(values)), strict=True):
        level = reduce(hash_key(value)[0], 16) % 3
        assert math.isclose(score, sigmoid(level - 1), rel_tol=1e-6)
    for number, score in zip([5, -1], model.scores(np.array([5, -1])), strict=True):
        level = reduce(hash_key(number)[0], 16) % 3
        assert math.isclose(score, sigmoid(level - 1), rel_tol=1e-6)
