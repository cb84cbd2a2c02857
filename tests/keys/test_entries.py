"""Every public function that takes keys, given one table of types and edge values.

A value is the same key however it comes: alone, in a list, an array, an Arrow column or a data
frame, from a file, to a filter, a collection, a stream or a guard. What is not a key is refused by
all of them, with the same sentence.
"""

import csv
import sys
import uuid

import numpy as np
import pytest
from edge_values import NOT_KEYS, REFUSED, TUPLES, TYPES, column
from edge_values import rows as table_of
from reference import hash_key, plain

import tamis
from tamis import cli, stores

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
feather = pytest.importorskip("pyarrow.feather")
pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")

from tamis.parquet import SkippingIndex  # noqa: E402

every_type = pytest.mark.parametrize("name", TYPES)


def single_keys(name):
    """The values of a type, each as str, bytes or an int."""
    values = TYPES[name][1]
    return [value if isinstance(value, str) else plain(value) for value in values]


def given_keys(name):
    """The values of a type as Python has them."""
    values = TYPES[name][1]
    return [value.bytes if isinstance(value, uuid.UUID) else value for value in values]


def hashes(keys):
    return [tuple(row) for row in tamis.hash_keys(keys).tolist()]


def by_family(keys):
    """Lists that are homogeneous: integers, and the bytes of wide decimals."""
    integers = [key for key in keys if isinstance(key, int)]
    return [part for part in (integers, [key for key in keys if key not in integers]) if part]


def arrow_forms(values):
    """The same values in other Arrow objects."""
    yield values
    yield pa.concat_arrays([values[:1], values])[1:]
    yield pa.chunked_array([values[:1], values[1:1], values[1:]])
    yield pa.table({"only": values})
    yield pa.record_batch({"only": values})
    if pa.types.is_dictionary(values.type):
        return
    for kind in (pa.dictionary(pa.int8(), values.type), pa.dictionary(pa.uint64(), values.type)):
        try:
            yield values.cast(kind)
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
            continue  # not every type has dictionaries in pyarrow


def library_forms(values):
    """The same values in the types of other libraries, where these have such a type."""
    types, kind = pa.types, values.type
    yield pd.Series(values, dtype=pd.ArrowDtype(kind))
    if types.is_date64(kind):
        return  # Polars and NumPy make timestamps of it
    if not isinstance(kind, pa.BaseExtensionType) and not types.is_dictionary(kind):
        yield pl.Series(values)
        yield pl.DataFrame({"only": pl.Series(values)})
    if types.is_integer(kind):
        yield values.to_numpy()
        yield pd.Series(values.to_numpy())
        yield pd.Series(values.to_numpy(), dtype=f"{'U' * kind.equals(pa.uint64())}Int64")
        yield memoryview(values.to_numpy())
        yield values.to_numpy().astype(object)
    if types.is_timestamp(kind):
        yield values.to_numpy(zero_copy_only=False)
        yield values.to_pandas().to_numpy()
        yield values.to_pandas().astype(object).to_numpy()
        yield list(values.to_pandas())
        yield pd.DatetimeIndex(values.to_pandas())
    if types.is_date32(kind):
        yield values.to_numpy(zero_copy_only=False)
        yield values.to_pandas()
    if types.is_string(kind) or types.is_binary(kind):
        yield values.to_numpy(zero_copy_only=False)
        yield pd.Series(values.to_pandas())
        yield pl.Series(values).cast(pl.Categorical if types.is_string(kind) else pl.Binary)


@every_type
def test_a_column_has_the_keys_of_its_values(name):
    values = column(name)
    expected = [hashes([key])[0] for key in single_keys(name)]
    assert expected == [hash_key(value) for value in TYPES[name][1]]
    for form in (given_keys(name), *arrow_forms(values), *library_forms(values)):
        assert hashes(form) == expected, type(form)


@every_type
def test_filters_take_a_column_as_its_values(name):
    values, keys = column(name), single_keys(name)
    f, g = tamis.Bloom(100, fpr=1e-9), tamis.Bloom(100, fpr=1e-9)
    f.update(values)
    for key in keys:
        g.add(key)
    assert f.to_bytes() == g.to_bytes()
    assert all(key in f for key in (*keys, *given_keys(name)))
    assert f.contains(values).all()
    for part in by_family(keys):
        assert f.contains(part).all()
    expected = tamis.Ribbon.build(values, fpr=1e-9).to_bytes()
    assert tamis.Ribbon.build(column(name, repeat=3), fpr=1e-9).to_bytes() == expected
    sharded = tamis.Sharded.from_batches([values[:1], values[1:]], fpr=1e-9)
    assert all(key in sharded for key in keys)
    quotient = tamis.Quotient.build(values, fpr=1e-9)
    assert [quotient.count(key) for key in keys] == [1] * len(keys)
    for key in keys:
        quotient.remove(key)
    assert not quotient.contains(values).any()


@pytest.mark.parametrize("name", TUPLES)
def test_every_entry_takes_tuples(name, run):
    """A tuple is the same key as a row of a table, for every function that takes keys."""
    keys, table = TUPLES[name], table_of(name)
    expected = [hash_key(key) for key in keys]
    struct = table.to_struct_array().combine_chunks()
    frame = pd.DataFrame({c: table[c].to_pandas() for c in table.column_names})
    frame.index = [f"row {i}" for i in range(len(frame))]  # an index is not a column
    forms = (keys, tuple(keys), iter(keys), table, table.to_batches()[0], struct, frame)
    for form in (*forms, pl.from_arrow(table), pa.chunked_array([struct[:1], struct[1:]])):
        assert hashes(form) == expected, type(form)
    f = tamis.Bloom.build(table, fpr=1e-9)
    assert f.to_bytes() == tamis.Bloom.build(keys, fpr=1e-9).to_bytes()
    assert all(key in f for key in keys)
    assert tamis.Ribbon.build(table, fpr=1e-9).contains(keys).all()
    assert tamis.StaticFunction.build(keys, [1] * len(keys)).get(table).tolist() == [1] * len(keys)
    for queries in (keys * 2, pa.concat_tables([table, table])):
        assert len(tamis.Workload.from_queries(queries)) == len(keys)
    assert tamis.Workload.from_queries(keys, keys=table).removed == len(keys)
    c = tamis.Collection.build({"a": keys}, fpr=1e-9)
    assert all(c.candidates(key) == ["a"] for key in keys)
    assert c.candidates_many(table)[0].tolist() == list(range(len(keys) + 1))
    windowed = tamis.Windowed(100, fpr=1e-9)
    assert not windowed.seen_many(keys).any()
    assert windowed.seen_many(table).all()
    assert [len(kept) for kept in tamis.dedup([table, table], window=100)] == [len(keys)]
    assert list(tamis.dedup(keys + keys, window=100)) == keys
    with tamis.Guard(stores.Memory(), tamis.Bloom(100, fpr=1e-9)) as g:
        g.put_many(dict.fromkeys(keys, b"x"))
        assert g.get(keys[0]) == b"x"
        assert g.get_many(keys) == [b"x"] * len(keys)
        assert g.filter.contains(table).all()
    pq.write_table(table, "keys.parquet")
    columns = " ".join(f"-c {column}" for column in table.column_names)
    assert run(f"build keys.parquet {columns} --fpr 1e-9 -o f.tamis")[0] == 0
    assert all(key in tamis.load("f.tamis") for key in keys)


def test_commands_take_several_columns(run, tmp_path, monkeypatch):
    """``-c a -c b`` is one key, with and without pyarrow, in tables and logs."""
    text = "tenant,id,v\nacme,7,x\nacme,8,y\nacme,7,z\n"
    (tmp_path / "keys.csv").write_text(text)
    (tmp_path / "log.csv").write_text("id,tenant\n7,acme\n7,bolt\n")
    for _ in range(2):
        assert run("build keys.csv -c tenant -c id --fpr 1e-9 -o f.tamis")[0] == 0
        f = tamis.load("f.tamis")
        assert len(f) == 2
        assert ("acme", "7") in f
        assert ("acme", 7) not in f
        answers = run("query f.tamis --from log.csv -c tenant -c id --count --json")
        assert answers[:2] == (0, '{"queries": 2, "maybe": 1, "no": 1}\n')
        assert run("dedup keys.csv -c tenant -c id --window 10")[1] == text.removesuffix(
            "acme,7,z\n"
        )
        build = "build keys.csv -c tenant -c id --queries log.csv --fpr 0.01 -o s.tamis"
        assert run(build)[0] == 0
        assert ("acme", "8") in tamis.load("s.tamis")
        code, _, err = run("build keys.csv -c tenant -c no --fpr 0.1 -o f.tamis")
        assert code == 2
        assert "has no column 'no'" in err
        monkeypatch.setitem(sys.modules, "pyarrow", None)


def test_a_row_with_a_null_is_not_a_key(run):
    table = pa.table({"a": ["x", None, "y"], "b": [1, 2, None]})
    pq.write_table(table, "keys.parquet")
    assert run("build keys.parquet -c a -c b --fpr 1e-9 -o f.tamis")[0] == 0
    assert len(tamis.load("f.tamis")) == 1
    answers = run("query f.tamis --from keys.parquet -c a -c b --count --json")
    assert answers[1] == '{"queries": 3, "maybe": 1, "no": 2}\n'


def test_fields_of_a_log_are_one_key(run, tmp_path):
    line = '1.2.3.4 - ada [10/Oct/2024:13:55:36 +0000] "GET /a HTTP/1.1" 200 5\n'
    (tmp_path / "access.log").write_text(line)
    f = tamis.Bloom.build([("1.2.3.4", "/a")], fpr=1e-9)
    f.save(tmp_path / "f.tamis")
    query = "query f.tamis --from access.log --log-format common -c host -c path --count --json"
    assert run(query)[1] == '{"queries": 1, "maybe": 1, "no": 0}\n'


@every_type
def test_static_functions_take_a_column_as_its_values(name):
    values, keys = column(name), single_keys(name)
    numbers = np.arange(len(keys)) % 2
    function = tamis.StaticFunction.build(values, numbers)
    for part in by_family(keys):
        assert function.get(part).tolist() == [numbers[keys.index(key)] for key in part]


@every_type
def test_collections_take_a_column_as_its_values(name):
    values, keys = column(name), single_keys(name)
    sets = {str(i): values[i : i + 1] for i in range(len(values))}
    c = tamis.Collection.build(sets, fpr=1e-9)
    c.append("all", values)
    for i, key in enumerate(keys):
        assert set(c.candidates(key)) >= {str(i), "all"}
    offsets, ids = c.candidates_many(values)
    for i in range(len(keys)):
        assert {c.names[j] for j in ids[offsets[i] : offsets[i + 1]]} >= {str(i), "all"}


@every_type
def test_workloads_take_a_column_as_its_values(name):
    values, keys = column(name, repeat=2), single_keys(name)
    w = tamis.Workload.from_queries(values)
    assert w.counts.tolist() == [2] * len(keys)
    assert sorted(hashes(w.values)) == sorted(hashes(column(name)))
    removed = [tamis.Workload.from_queries(values, keys=part) for part in by_family(keys)]
    assert sum(each.removed for each in removed) == len(values)
    assert len(tamis.Workload.from_counts(values, np.ones(len(values)))) == len(keys)


@every_type
@pytest.mark.parametrize(
    "make",
    [lambda: tamis.Windowed(1000, fpr=1e-9), lambda: tamis.StableBloom(1000, fpr=1e-9, fnr=1e-9)],
)
def test_streams_take_a_column_as_its_values(name, make):
    values, keys = column(name), single_keys(name)
    f = make()
    assert [len(kept) for kept in tamis.dedup([values, values], filter=f)] == [len(values)]
    assert all(f.seen(key) for key in keys)
    f = make()
    assert list(tamis.dedup(keys, filter=f)) == keys
    assert f.seen_many(values).all()


@every_type
def test_guards_take_the_same_keys(name):
    keys = single_keys(name)
    for store in (stores.Memory(), stores.SQLite(":memory:")):
        with tamis.Guard(store, tamis.Bloom(100, fpr=1e-9)) as g:
            for i, key in enumerate(keys):
                g.put(key, b"%d" % i)
            for i, key in enumerate(keys):
                assert g.get(key) == b"%d" % i
            assert g.get_many(keys) == [b"%d" % i for i in range(len(keys))]
            assert g.filter.contains(column(name)).all()


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    """Run a command in a folder; return its code and what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(line):
        with pytest.raises(SystemExit) as end:
            cli.main(line.split())
        out, err = capfd.readouterr()
        return end.value.code, out, err

    return run


@every_type
def test_files_hold_the_same_keys(name, run):
    values, keys = column(name), single_keys(name)
    table = pa.table({"c": pa.concat_arrays([values, pa.nulls(1, values.type)])})
    pq.write_table(table, "keys.parquet")
    feather.write_feather(table, "keys.arrow", compression="uncompressed")
    expected = tamis.Ribbon.build(values, fpr=1e-9).to_bytes()
    for file in ("keys.parquet", "keys.arrow"):
        assert run(f"build {file} --fpr 1e-9 -o f.tamis")[0] == 0
        f = tamis.load("f.tamis")
        assert f.to_bytes() == expected
        assert all(key in f for key in keys)
        code, out, _ = run(f"query f.tamis --from {file} --count --json")
        assert (code, out) == (
            0,
            f'{{"queries": {len(keys) + 1}, "maybe": {len(keys)}, "no": 1}}\n',
        )


@pytest.mark.parametrize("name", [name for name in TYPES if name.startswith(("int", "uint"))])
def test_integers_in_text_are_the_same_keys(name, run, tmp_path):
    check_integers(run, tmp_path, single_keys(name))


def test_integers_of_both_signs_in_text_are_the_same_keys(run, tmp_path):
    check_integers(run, tmp_path, [-(2**63), -1, 0, 2**63 - 1, 2**63, 2**64 - 1])


def check_integers(run, folder, keys):
    text = list(map(str, keys))
    (folder / "keys.txt").write_text("\n".join(text) + "\n")
    with (folder / "keys.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["c"], *([each] for each in text)])
    expected = tamis.Ribbon.build(keys, fpr=1e-9).to_bytes()
    for kind in (
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int8(), pa.string()),
    ):
        feather_file = folder / f"{str(kind)[:6]}.arrow"
        table = pa.table({"c": pa.array(text, kind)})
        with pa.ipc.new_file(feather_file, table.schema) as writer:
            writer.write_table(table)
        assert run(f"build {feather_file} --integers --fpr 1e-9 -o f.tamis")[0] == 0
        assert tamis.load("f.tamis").to_bytes() == expected
    for file in ("keys.txt", "keys.csv"):
        assert run(f"build {file} --integers --fpr 1e-9 -o f.tamis")[0] == 0
        assert tamis.load("f.tamis").to_bytes() == expected
        answers = run(f"query f.tamis --from {file} --integers --count --json")
        assert answers[:2] == (0, f'{{"queries": {len(keys)}, "maybe": {len(keys)}, "no": 0}}\n')


@pytest.mark.parametrize(
    ("text", "number"),
    [("7", 7), ("-0", 0), ("007", 7), ("+5", 5), (" 7 ", 7)]
    + [(text, None) for text in ("1_000", "0x10", "1.0", "1e3", "- 5", "seven", str(2**64))],
)
def test_every_file_reads_integers_alike(text, number, run, tmp_path):
    (tmp_path / "keys.txt").write_text(f"{text}\n")
    (tmp_path / "keys.csv").write_text(f"c\n{text}\n")
    for file in ("keys.txt", "keys.csv"):
        code, _, err = run(f"build {file} --integers --fpr 1e-9 -o f.tamis")
        assert code == (2 if number is None else 0), err
        if number is None:
            assert text in err
        else:
            assert number in tamis.load("f.tamis")


@pytest.mark.parametrize("name", [name for name in TYPES if "string" in name])
def test_text_in_files_is_the_same_key(name, run, tmp_path):
    keys = [key for key in single_keys(name) if key and "\0" not in key]
    (tmp_path / "keys.txt").write_text("\n".join(keys) + "\n")
    with (tmp_path / "keys.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["c"], *([key] for key in keys)])
    for file in ("keys.txt", "keys.csv"):
        assert run(f"build {file} --fpr 1e-9 -o f.tamis")[0] == 0
        assert tamis.load("f.tamis").to_bytes() == tamis.Ribbon.build(keys, fpr=1e-9).to_bytes()


def batch_calls():
    """Every call that takes a column of keys, on an object that holds some."""
    bloom, quotient = tamis.Bloom(10, fpr=0.1), tamis.Quotient(10, fpr=0.1)
    windowed = tamis.Windowed(10, fpr=0.1)
    collection = tamis.Collection.build({"a": [1, 2]}, fpr=0.1)
    return {
        "hash_keys": tamis.hash_keys,
        "build": lambda keys: tamis.Bloom.build(keys, fpr=0.1),
        "build static": lambda keys: tamis.Ribbon.build(keys, fpr=0.1),
        "update": bloom.update,
        "contains": bloom.contains,
        "update quotient": quotient.update,
        "from_batches": lambda keys: tamis.Sharded.from_batches([keys], fpr=0.1),
        "static function": lambda keys: tamis.StaticFunction.build(keys, [1] * len(keys)),
        "seen_many": windowed.seen_many,
        "dedup": lambda keys: list(tamis.dedup([keys], window=10)),
        "collection": lambda keys: tamis.Collection.build({"a": keys}, fpr=0.1),
        "append": lambda keys: collection.append("b", keys),
        "candidates_many": collection.candidates_many,
        "from_queries": tamis.Workload.from_queries,
        "from_queries, keys": lambda keys: tamis.Workload.from_queries([1], keys=keys),
        "from_counts": lambda keys: tamis.Workload.from_counts(keys, [1] * len(keys)),
        "stack": lambda keys: tamis.Stacked.build(keys, fpr=0.1),
        "negatives": lambda keys: tamis.Stacked.build(
            [1], tamis.Workload.zipf(1.0, 100), negatives=keys, fpr=0.1
        ),
        "advise": lambda keys: tamis.advise(keys, bits_per_key=9),
    }  # fmt: skip


@pytest.mark.parametrize("call", batch_calls())
def test_columns_that_hold_no_keys_are_refused_alike(call):
    function = batch_calls()[call]
    for values in REFUSED.values():
        for form in (values, pa.chunked_array([values])):
            with pytest.raises(
                TypeError, match=r"^keys is an Arrow column of type .* are accepted"
            ):
                function(form)
    for bad in ([1, None], [1, 0.0], [1, True], [1, float("nan")]):
        with pytest.raises(TypeError, match=r"^keys\[1\] is .*; a key is a str, bytes, or an int"):
            function(bad)
    for nulls in (pa.array([1, None]), pd.Series([1, None], dtype="Int64"), pl.Series([1, None])):
        with pytest.raises(TypeError, match=r"^keys\[1\] is null"):
            function(nulls)
    with pytest.raises(OverflowError, match=r"^keys\[1\] is 18446744073709551616; a key is"):
        function([1, 2**64])


@pytest.mark.parametrize("name", ["uuid", "json"])
def test_an_index_refuses_extension_types(name, tmp_path):
    """pyarrow cannot filter a dataset by them."""
    pq.write_table(pa.table({"c": column(name)}), tmp_path / "a.parquet")
    with pytest.raises(TypeError, match=r"^columns must be of type .* but 'c' is extension<"):
        SkippingIndex.build(tmp_path, columns="c")


@pytest.mark.parametrize("name", REFUSED)
def test_files_that_hold_no_keys_are_refused_alike(name, run):
    try:
        pq.write_table(pa.table({"c": REFUSED[name]}), "a.parquet")
    except pa.ArrowNotImplementedError:
        pytest.skip("no such type in Parquet")
    code, _, err = run("build a.parquet --fpr 0.1 -o f.tamis")
    assert code == 2
    assert "are accepted" in err or "has no keys" in err
    assert "Traceback" not in err
    with pytest.raises(TypeError, match=r"^columns must be of type .* but 'c' is "):
        SkippingIndex.build("a.parquet", columns="c")


def single_calls():
    """Every call that takes one key."""
    bloom, quotient = tamis.Bloom(10, fpr=0.1), tamis.Quotient(10, fpr=0.1)
    windowed, stable = tamis.Windowed(10, fpr=0.1), tamis.StableBloom(10, fpr=0.1, fnr=0.1)
    collection = tamis.Collection.build({"a": [1, 2]}, fpr=0.1)
    function = tamis.StaticFunction.build([1], [1])
    guard = tamis.Guard(stores.Memory(), tamis.Bloom(10, fpr=0.1))
    return {
        "in": bloom.__contains__,
        "add": bloom.add,
        "remove": quotient.remove,
        "count": quotient.count,
        "seen": windowed.seen,
        "seen stable": stable.seen,
        "dedup": lambda key: list(tamis.dedup(iter([key]), window=10)),
        "candidates": collection.candidates,
        "static function": function.__getitem__,
        "get": guard.get,
    }


@pytest.mark.parametrize("call", single_calls())
def test_what_is_not_a_key_is_refused_alike(call):
    function = single_calls()[call]
    for value in NOT_KEYS:
        with pytest.raises(TypeError, match=r"^key is .*; a key is a str, bytes, or an int from"):
            function(value)
    with pytest.raises(TypeError, match=r"^key is a str with lone surrogates"):
        function("\ud800")
    for number in (2**64, -(2**63) - 1):
        with pytest.raises(OverflowError, match=rf"^key is {number}; a key is"):
            function(number)
