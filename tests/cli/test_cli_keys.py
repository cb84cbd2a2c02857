"""The keys of a table are the same whatever the format of the file."""

import json

import pytest
from command import refused

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROWS = [(i, f"name {i % 7}") for i in range(500)]


@pytest.fixture
def tables(tmp_path, monkeypatch, run):
    """The same table, with nulls, as CSV, TSV, JSON lines, Parquet and Arrow."""
    monkeypatch.chdir(tmp_path)
    rows = [*ROWS, (None, "no id"), (7000, None), (None, None)]
    text = [["" if value is None else str(value) for value in row] for row in rows]
    for ending, by in (("csv", ","), ("tsv", "\t")):
        lines = [by.join(row) for row in (["id", "name"], *text)]
        (tmp_path / f"t.{ending}").write_text("\n".join(lines) + "\n")
    records = [dict(zip(("id", "name"), row, strict=True)) for row in rows]
    records[-1] = {}  # a null may be left out
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n")
    table = pa.table({"id": [row[0] for row in rows], "name": [row[1] for row in rows]})
    pq.write_table(table, tmp_path / "t.parquet")
    with pa.ipc.new_file(tmp_path / "t.arrow", table.schema) as file:
        file.write_table(table)
    return tmp_path


FORMATS = ["csv", "tsv", "jsonl", "parquet", "arrow"]


@pytest.mark.parametrize(
    ("columns", "nulls"),
    [("-c id:int -c name", 3), ("-c id:int", 2), ("-c name", 2), ("-c name -c id:int", 3)],
)
def test_every_format_gives_the_same_keys(run, tables, columns, nulls):
    built = set()
    for ending in FORMATS:
        code, _, err = run(f"build t.{ending} {columns} --fpr 0.001 -o f.tamis")
        assert code == 0
        said = f"tamis: {nulls} of 503 records of t.{ending} have no key (a null) and are skipped\n"
        assert err == said
        built.add((tables / "f.tamis").read_bytes())
    assert len(built) == 1


@pytest.mark.parametrize("ending", FORMATS)
def test_records_without_a_key_are_counted(run, tables, ending):
    run(f"build t.{ending} -c id:int -c name --fpr 0.001 -o f.tamis")
    code, out, err = run(f"query f.tamis --from t.{ending} -c id:int -c name --count")
    assert code == 0
    assert [int(line.split()[0].replace(",", "")) for line in out.splitlines()] == [503, 500, 3]
    assert err.endswith(
        "3 of 503 records of t." + ending + ' have no key (a null) and are answered "no"\n'
    )
    code, _, err = run(f"dedup t.{ending} -c id:int -c name --window 1000 -o once.{ending}")
    assert code == 0
    assert f"3 of 503 records of t.{ending} have no key (a null) and are kept\n" in err
    again = run(f"query f.tamis --from once.{ending} -c id:int -c name --only no --count")
    assert again[1].split()[0] == "503"


def test_records_without_a_key_stay_in_their_place(run, tables):
    (tables / "n.jsonl").write_text('{"a": 1}\n{"a": null}\n{"a": 1}\n{}\n{"a": 2}\n{"b": 1}\n')
    (tables / "n.csv").write_text("a,b\n1,x\n,y\n1,z\n,\n2,x\n,q\n")
    assert run("dedup n.jsonl -c a --window 10")[1] == (
        '{"a": 1}\n{"a": null}\n{}\n{"a": 2}\n{"b": 1}\n'
    )
    assert run("dedup n.csv -c a --window 10")[1] == "a,b\n1,x\n,y\n,\n2,x\n,q\n"


@pytest.mark.parametrize("ending", FORMATS)
def test_a_column_twice_is_refused(run, tables, ending):
    for columns in ("-c id -c id", "-c id -c id:int"):
        err = refused(run(f"build t.{ending} {columns} --fpr 0.1 -o f.tamis"))
        assert err == "tamis: --column names the column 'id' twice\n"


def test_a_name_that_ends_like_a_type_is_a_name(run, tables):
    (tables / "odd.csv").write_text("id:int,id\nada,7\n")
    assert run("build odd.csv -c id:int --fpr 0.01 -o f.tamis")[0] == 0
    assert run("query f.tamis ada")[1] == "ada\tmaybe\n"


def test_text_that_is_no_integer_is_named(run, tables):
    assert "column 'name' of t.csv is read as integers, but contains b'name 0'" in refused(
        run("build t.csv -c name:int --fpr 0.1 -o f.tamis")
    )
    (tables / "bad.txt").write_text("1\n1_000\n")
    assert "bad.txt is read as integers, but contains b'1_000'" in refused(
        run("build bad.txt --integers --fpr 0.1 -o f.tamis")
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[1, 2]", "must have a JSON object in each line"),
        ('{"id": 1', "is not a file of JSON lines"),
        ('{"id": 1.5}', "has 1.5 in 'id': a key is text or an integer"),
        ('{"id": [1]}', "has [1] in 'id': a key is text or an integer"),
        ('{"a": 1, "b": 2}', "has the columns a, b; choose one with --column"),
        ("[" * 100_000, "bad.jsonl"),
    ],
)
def test_json_lines_that_have_no_keys_are_refused(run, tables, line, said):
    (tables / "bad.jsonl").write_text(line + "\n")
    assert said in refused(run("build bad.jsonl --fpr 0.1 -o f.tamis"))


def test_answers_are_added_to_json_lines(run, tables):
    (tables / "q.jsonl").write_text('{"who": "é", "n": 1}\n{"who": "zoe"}\n')
    (tables / "k.txt").write_text("é\n")
    run("build k.txt --fpr 0.0001 -o f.tamis")
    assert run("query f.tamis --from q.jsonl -c who")[1] == (
        '{"who": "é", "n": 1, "tamis": "maybe"}\n{"who": "zoe", "tamis": "no"}\n'
    )
    assert run("query f.tamis --from q.jsonl -c who --only no")[1] == '{"who": "zoe"}\n'
    err = refused(run("query f.tamis --from q.jsonl -c who --answer-column who"))
    assert "already has that column" in err


@pytest.fixture
def kinds(tables, run):
    """Numbers and texts as text, numbers as a column of integers, and a filter of each."""
    (tables / "numbers.txt").write_text("\n".join(map(str, range(500))))
    (tables / "names.txt").write_text("\n".join(f"name {i}" for i in range(500)))
    pq.write_table(pa.table({"id": range(1000)}), tables / "ids.parquet")
    assert run("build numbers.txt --integers --fpr 0.001 -o integers.tamis")[0] == 0
    assert run("build numbers.txt --fpr 0.001 -o texts.tamis")[0] == 0
    return tables


@pytest.mark.filterwarnings("always::tamis.KeyKindWarning")
@pytest.mark.parametrize(
    "line",
    [
        "plan names.txt --queries ids.parquet --fpr 0.01",
        "build names.txt --queries ids.parquet --bits-per-key 8 -o out.tamis",
        "advise names.txt --queries ids.parquet",
        "advise names.txt --queries ids.parquet --measure",
        "build ids.parquet --queries names.txt --bits-per-key 8 -o out.tamis",
    ],
)
def test_a_log_of_another_kind_is_reported(run, kinds, line):
    code, _, err = run(line)
    assert code == 0
    assert err.count("which are never equal: read text as integers with --integers") == 1
    code, _, err = run(line.replace("ids.parquet", "numbers.txt"))
    assert (code, "never equal" in err) == (0, False)


@pytest.mark.filterwarnings("always::tamis.KeyKindWarning")
@pytest.mark.parametrize("line", ["query {} 7", "query {} --from numbers.txt --count",
                                  "verify {} --keys numbers.txt"])  # fmt: skip
def test_a_filter_of_integers_that_is_asked_for_text_is_reported(run, kinds, line):
    err = run(line.format("integers.tamis"))[2]
    assert err.count("\n") == 1
    assert "keys may be in the filter as integers, and fewer as text" in err
    assert run(f"{line.format('integers.tamis')} --integers")[::2] == (0, "")
    assert run(line.format("texts.tamis"))[::2] == (0, "")
    assert run("query integers.tamis 1001 1002 name")[::2] == (1, "")
