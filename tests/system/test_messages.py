"""What a newcomer gets wrong first, and what the errors say to do instead."""

import re

import pytest

import tamis

RIBBON = tamis.Ribbon.build(["a"], fpr=0.01)
BLOOM = tamis.Bloom.build(["a"], fpr=0.01)

MISTAKES = {
    "a dict as the store": (
        lambda: tamis.Guard({"a": "1"}),
        TypeError,
        "store must be a store of tamis.stores, such as tamis.stores.Memory(), not a dict",
    ),
    "a list as the workload": (
        lambda: tamis.Stacked.build(["a"], ["b"]),
        TypeError,
        "workload must be a tamis.Workload, such as Workload.from_queries(log, keys=keys)",
    ),
    "a number as the queries": (
        lambda: tamis.Workload.from_queries(5, keys=["a"]),
        TypeError,
        "keys must be a list, a NumPy array, an Arrow column or another iterable of keys, not int",
    ),
    "a log as a workload": (
        lambda: tamis.Workload(["a", "b"]),
        TypeError,
        "use Workload.from_queries(log, keys=keys), from_counts or zipf",
    ),
    "a number of filters": (
        lambda: tamis.compare(1000),
        TypeError,
        "filters must be a list or a mapping of filters, plans or choices of an advice, not 1000",
    ),
    "adding to a static filter": (
        lambda: RIBBON.add("b"),
        AttributeError,
        "keys cannot be added to a Ribbon filter; use one of Bloom, Quotient, Cuckoo, Telescoping,",
    ),
    "removing from a Bloom filter": (
        lambda: BLOOM.remove_many(["b"]),
        AttributeError,
        "keys cannot be removed from a Bloom filter; use one of Quotient, Cuckoo, Telescoping,",
    ),
    "adapting a static filter": (
        lambda: RIBBON.adapt("b"),
        AttributeError,
        "false positives cannot be reported to a Ribbon filter; use one of Telescoping,",
    ),
    "merging static filters": (
        lambda: RIBBON | RIBBON,
        tamis.IncompatibleError,
        "Ribbon filters cannot be merged; these can: Bloom, Quotient,",
    ),
    "merging two kinds": (
        lambda: BLOOM | RIBBON,
        tamis.IncompatibleError,
        "a Bloom filter can be merged only with a Bloom filter, not a Ribbon filter",
    ),
    "merging two sizes": (
        lambda: BLOOM | tamis.Bloom.build(range(1000), fpr=0.01),
        tamis.IncompatibleError,
        "Bloom filters can be merged only if they have the same size: one is blocked with 512 of",
    ),
    "texts without names": (
        lambda: tamis.text.SearchIndex.build(["a fine mesh"]),
        TypeError,
        "documents must be a mapping from names, or pairs of a name and a document, not 'a fine",
    ),
    "sets without names": (
        lambda: tamis.Collection.build([range(3), range(5)]),
        TypeError,
        "sets must be a mapping from names, or pairs of a name and a set, not range(0, 3) (range)",
    ),
    "a number of records": (
        lambda: list(tamis.dedup(5, window=10)),
        TypeError,
        "records must be an iterable of records or batches, an Arrow table or stream, or the path",
    ),
    "a seed beside a key": (
        lambda: tamis.Bloom(10, fpr=0.1, seed=3, key=bytes(16)),
        ValueError,
        "pass either seed or key, not seed=3 with a key",
    ),
    "a list of parts": (
        lambda: tamis.Workload.merge([tamis.Workload.from_queries(["a"])]),
        TypeError,
        "parts[0] must be a workload, not of type list; call merge(*parts)",
    ),
    "a list of collections": (
        lambda: tamis.Collection.merge([tamis.Collection.build({"a": [1]})]),
        TypeError,
        "parts[0] must be a collection, not of type list; call merge(*parts)",
    ),
    "a number of sets": (
        lambda: tamis.Collection.build(5),
        TypeError,
        "sets must be a mapping from names, or pairs of a name and a set, not 5 (int)",
    ),
    "a name as the visited sets": (
        lambda: tamis.Collection.build({"ab": [1]}).record("ab"),
        TypeError,
        "visited must be a list of names or numbers, not 'ab'",
    ),
    "a name as the stop words": (
        lambda: tamis.text.SearchIndex.build({"a": "b"}, stop_words="english"),
        TypeError,
        "stop_words must be a list of words, or ENGLISH, not 'english'",
    ),
    "a name as the tokenizer": (
        lambda: tamis.text.SearchIndex.build({"a": "b"}, tokenizer="words"),
        TypeError,
        "tokenizer must be a function of a text, not 'words'",
    ),
    "a filter that forgets nothing": (
        lambda: tamis.dedup(["a"], filter=BLOOM),
        TypeError,
        "filter must be a Windowed or StableBloom filter, not <tamis.Bloom",
    ),
    "a fraction as the key of a record": (
        lambda: tamis.dedup([("a", 1)], window=5, key=0.5),
        TypeError,
        "key must be a column, a list of columns or a function, not 0.5",
    ),
    "one shard": (
        lambda: tamis.Sharded.join(5),
        TypeError,
        "shards must be an iterable or a mapping of shards, not 5",
    ),
    "a number of batches": (
        lambda: tamis.Sharded.from_batches(5, fpr=0.01),
        TypeError,
        "batches must be an iterable of batches of keys, not 5",
    ),
    "a number as the snapshot": (
        lambda: tamis.Guard(tamis.stores.Memory(), snapshot=5),
        TypeError,
        "snapshot must be the path of a file, not 5",
    ),
    "a setting that is missing": (
        lambda: tamis.stores.Redis(None),
        TypeError,
        'url must be a URL such as "redis://localhost:6379", not None',
    ),
    "a path that is missing": (
        lambda: tamis.stores.SQLite(None),
        TypeError,
        "path must be a path, an engine of SQLAlchemy or a connection of Django, not None",
    ),
    "no items to put": (
        lambda: tamis.Guard(tamis.stores.Memory()).put_many(None),
        TypeError,
        "items must be a mapping of keys to values, or pairs of a key and a value, not None",
    ),
    "no keys to delete": (
        lambda: tamis.Guard(tamis.stores.Memory()).delete_many(None),
        TypeError,
        "keys must be a list, a NumPy array, an Arrow column or another iterable of keys, not None",
    ),
    "no keys to get": (
        lambda: tamis.Guard(tamis.stores.Memory()).get_many(None),
        TypeError,
        "keys must be a list, a NumPy array, an Arrow column or another iterable of keys, not None",
    ),
    "no keys of a window": (
        lambda: tamis.Windowed.build(None, fpr=0.1),
        TypeError,
        "keys must be a list, a NumPy array, an Arrow column or another iterable of keys, not None",
    ),
    "an unknown set": (
        lambda: tamis.Collection.build({"a": [1], "b": [2]}).drop(["unknown"]),
        KeyError,
        "sets must be among the 2 names, such as 'a', not 'unknown'",
    ),
    "a set of an empty collection": (
        lambda: tamis.Collection.build({}).drop(["unknown"]),
        KeyError,
        "sets must be empty, as the collection has no sets, not 'unknown'",
    ),
    "no set to drop": (
        lambda: tamis.Collection.build({"a": [1]}).drop([None]),
        TypeError,
        "sets must be a list of names or numbers, not [None]",
    ),
    "an unknown run": (
        lambda: tamis.Collection.build({"a": [1]}, kind="stacked").drop(["unknown"]),
        KeyError,
        "runs must be among the 1 names, such as 'a', not 'unknown'",
    ),
    "no run to drop": (
        lambda: tamis.Collection.build({"a": [1]}, kind="stacked").drop(None),
        TypeError,
        "runs must be a list of names or numbers, not None",
    ),
    "sets without names, within a budget": (
        lambda: tamis.Collection.build(None, budget="1kB"),
        TypeError,
        "sets must be a mapping from names, or pairs of a name and a set, not None (NoneType)",
    ),
    "a number that is no open file": (
        lambda: tamis.Collection.build({"a": [1]}).write(-1),
        ValueError,
        "descriptor must be from 0 to 2147483647, not -1",
    ),
    "a number as a document": (
        lambda: tamis.text.SearchIndex.build({"a": "b"}).drop(-1),
        TypeError,
        "name must be a str, not -1 (int)",
    ),
    "no source": (
        lambda: tamis.parquet.SkippingIndex.build(None, columns="user"),
        TypeError,
        "source must be a path, a pattern or a list of them, not None",
    ),
    "a number of columns": (
        lambda: tamis.parquet.SkippingIndex.build("a.parquet", columns=2),
        ValueError,
        "columns must be one or more distinct names, not 2",
    ),
    "text as fractions": (
        lambda: tamis.plan_stable("x", [1.0], bits=1000, fpr=0.1, gap=100),
        TypeError,
        "p_j must be a list of fractions, not 'x'",
    ),
    "text as scores": (
        lambda: tamis.StableLearned.plan("x", [0.5], bits=1000, fpr=0.1, gap=100),
        TypeError,
        "member_scores must be a list of scores, not 'x'",
    ),
    "no plan of a stable filter": (
        lambda: tamis.StableLearned(None, None),
        TypeError,
        "plan must be a plan of StableLearned.plan, not None",
    ),
    "no plan of a stack": (
        lambda: tamis.Stacked.from_plan(None, ["a"]),
        TypeError,
        "plan must be a tamis.Plan, as tamis.plan returns, not None",
    ),
    "a name without a filter": (
        lambda: tamis.compare({"a": None}),
        TypeError,
        "filters['a'] must be a filter, a plan or a choice of an advice, not NoneType",
    ),
    "a name as the axes": (
        lambda: tamis.compare([BLOOM], ax="x"),
        TypeError,
        "ax must be axes of matplotlib, or None, not 'x'",
    ),
    "a name as the axes of a collection": (
        lambda: tamis.Collection.build({"a": [1]}).plot("x"),
        TypeError,
        "ax must be axes of matplotlib, or None, not 'x'",
    ),
    "no path to load": (
        lambda: tamis.load(None),
        TypeError,
        "path must be the path of a file, not None",
    ),
    "no path to save to": (
        lambda: BLOOM.save(None),
        TypeError,
        "path must be the path of a file, not None",
    ),
    "a number as a folder": (
        lambda: tamis.Sharded.from_batches([["a"]], fpr=0.1, directory=5),
        TypeError,
        "directory must be the path of a folder, not 5",
    ),
    "no batches of queries": (
        lambda: tamis.Workload.from_batches(None),
        TypeError,
        "batches must be an iterable of batches of queries, not None",
    ),
    "one share": (
        lambda: tamis.Workload.from_queries(["a"]).quantiles(0.5),
        TypeError,
        "shares must be a list of numbers from 0 to 1, not 0.5",
    ),
    "no workload to compare with": (
        lambda: tamis.Workload.from_queries(["a"]).drift(None),
        TypeError,
        "other must be a tamis.Workload, such as Workload.from_queries(log, keys=keys), not None",
    ),
    "a number as a table": (
        lambda: tamis.stores.SQLite("a.db", table=1, key="k", value="v"),
        TypeError,
        "table must be a str, or None, not 1",
    ),
    "a number as the name of a key": (
        lambda: tamis.stores.SQLite("a.db", table="t", key=1, value="v"),
        TypeError,
        "key must be the name of a column, or a list of names, not 1",
    ),
    "a number as the name of a store": (
        lambda: tamis.stores.Redis(name=1),
        TypeError,
        "name must be a str, not 1",
    ),
    "no needs": (
        lambda: tamis.advise(5, bits_per_key=10, needs=None),
        TypeError,
        "needs must be a set of names, not None",
    ),
    "neither a rate nor a budget": (
        lambda: tamis.Ribbon.build(["a"]),
        ValueError,
        "pass exactly one of fpr or bits_per_key",
    ),
    "a typo": (
        lambda: tamis.Bloom.build(["a"], fpr=0.01, layout="bloked"),
        ValueError,
        "layout must be 'blocked', 'standard' or 'segmented', not 'bloked'",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_explained(mistake):
    call, error, text = MISTAKES[mistake]
    with pytest.raises(error, match=re.escape(text)):
        call()
