"""The command line: its output, its exit codes, and one line for every error."""

import json
import resource
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from command import ASKED, KEYS, refused
from frames import GOLDEN, with_values
from reference import frame, parts
from servers import postgres_url  # noqa: F401

import tamis


def test_build_query_verify_inspect(run):
    code, out, _ = run("build keys.txt --fpr 0.01 -o a.tamis --json")
    assert code == 0
    assert json.loads(out)["keys"] == 2000
    assert run("query a.tamis user7@example.org nobody")[:2] == (
        0,
        "user7@example.org\tmaybe\nnobody\tno\n",
    )
    assert run("query a.tamis nobody")[0] == 1
    assert run("verify a.tamis --keys keys.txt")[0] == 0
    code, out, _ = run("verify a.tamis --keys log.txt --json")
    assert code == 1
    found = json.loads(out)
    f = tamis.load("a.tamis")
    assert found["denied"] == int((~f.contains(ASKED)).sum())
    assert len(found["first_denied"]) == 5
    code, out, _ = run("inspect a.tamis --json")
    assert json.loads(out)["kind"] == "Ribbon"
    assert "bits per key" in run("inspect a.tamis")[1]


def test_a_plan_is_read_up_to_its_limit(run, tmp_path):
    """However long the file is: this one is larger than memory, and takes no space on disk."""
    assert run("plan keys.txt --bits-per-key 8 -o p.json")[0] == 0
    text = Path("p.json").read_text().rstrip()
    plan = tmp_path / "plan.json"
    for length, code in ((1 << 20, 0), ((1 << 20) + 1, 2)):
        plan.write_text(text.ljust(length))
        found, _, err = run(f"build keys.txt --plan {plan} -o limit.tamis")
        assert found == code, err
    assert f"--plan {plan}: a plan has at most 1048576 characters" in err
    with plan.open("wb") as file:
        file.truncate(1 << 40)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found, _, err = run(f"build keys.txt --plan {plan} -o limit.tamis")
    assert found == 2
    assert "a plan has at most 1048576 characters" in err
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


GOLDEN_KINDS = {
    "collection": "Collection", "runs": "Runs", "skipping": "SkippingIndex", "snapshot": "Quotient",
    "text": "SearchIndex", "model": "Model", "staticfunction": "StaticFunction",
}  # fmt: skip


@pytest.mark.parametrize("name", GOLDEN_KINDS)
def test_inspect_and_verify_open_every_kind_of_file(run, folder, name):
    """Intact ones are described; of damaged ones, an error says so."""
    golden = (GOLDEN / f"v1-{name}.tamis").read_bytes()
    (folder / "f.tamis").write_bytes(golden)
    for command in ("inspect", "verify"):
        code, out, _ = run(f"{command} f.tamis --json")
        assert (code, json.loads(out)["kind"]) == (0, GOLDEN_KINDS[name])
        assert run(f"{command} f.tamis")[0] == 0
    for place in range(3, len(golden), max(len(golden) // 7, 1)):
        damaged = bytearray(golden)
        damaged[place] ^= 1
        (folder / "f.tamis").write_bytes(damaged)
        for command in ("inspect", "verify"):
            code, _, error = run(f"{command} f.tamis")
            assert (code, "f.tamis: " in error) == (2, True)


def test_verify_sets_aside_keys_among_the_absent_ones(run):
    run("build keys.txt --fpr 0.01 -o a.tamis")
    code, out, _ = run("verify a.tamis --absent keys.txt")
    assert code == 1
    assert "100 % measured" in out
    assert "--keys sets them aside" in out
    code, out, _ = run("verify a.tamis --keys keys.txt --absent log.txt --json")
    assert code == 0
    found = json.loads(out)
    absent = [asked for asked in ASKED if asked not in set(KEYS)]
    assert found["set_aside"] == len(ASKED) - len(absent)
    assert found["measured_fpr"] == tamis.load("a.tamis").contains(absent).mean()
    assert "set aside" in run("verify a.tamis --keys keys.txt --absent log.txt")[1]
    assert "all 2,000 are among --keys" in refused(
        run("verify a.tamis --keys keys.txt --absent keys.txt")
    )


def test_verify_weighs_false_positives_by_how_often_they_are_queried(run, folder):
    """One unlucky key that is queried often is no evidence against a filter; many keys are."""
    run("build keys.txt --fpr 0.01 -o a.tamis")
    others = [f"absent{i}" for i in range(20_000)]
    wrong = np.flatnonzero(tamis.load("a.tamis").contains(others))
    (folder / "hot.txt").write_text("\n".join([*others[:500], *[others[wrong[0]]] * 500]))
    assert run("verify a.tamis --absent hot.txt")[0] == 0
    (folder / "wrong.txt").write_text("\n".join(others[i] for i in wrong))
    assert run("verify a.tamis --absent wrong.txt")[0] == 1


@pytest.mark.parametrize(
    "kind", ["bloom", "cuckoo", "fuse", "quotient", "ribbon", "telescoping", "stacked"]
)
def test_builds_each_kind(run, kind):
    assert run(f"build keys.txt --kind {kind} --fpr 0.01 -o kind.tamis")[0] == 0
    assert tamis.load("kind.tamis").contains(KEYS).all()
    assert run("inspect kind.tamis")[0] == 0


def test_a_log_and_a_plan_make_a_stack(run):
    code, out, _ = run("plan keys.txt --queries log.txt --bits-per-key 8 -o p.json --json")
    plan = tamis.Plan.from_json(out)
    assert code == 0
    assert plan.n_keys == 2000
    assert len(plan.layers) > 1
    assert run("build keys.txt --queries log.txt --bits-per-key 8 -o s.tamis")[0] == 0
    assert run("build keys.txt --queries log.txt --plan p.json -o t.tamis")[0] == 0
    s, t = tamis.load("s.tamis"), tamis.load("t.tamis")
    assert s.to_bytes() == t.to_bytes()
    code, out, _ = run("inspect s.tamis")
    assert out.count("█") > len(s.layers)
    assert "keys" in run("plan 1000000 --zipf 1.0,100000000,50000000 --fpr 0.001")[1]


def test_tables_are_annotated_and_filtered(run, folder):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import feather, parquet

    run("build keys.csv -c email --fpr 0.01 -o csv.tamis")
    assert tamis.load("csv.tamis").to_bytes() == tamis.Ribbon.build(KEYS, fpr=0.01).to_bytes()
    code, _, _ = run("query one.tamis --from keys.csv -c email -o a.parquet")
    table = parquet.read_table("a.parquet")
    expected = tamis.load("one.tamis").contains(KEYS)
    assert code == 0
    assert [answer == "maybe" for answer in table["tamis"].to_pylist()] == expected.tolist()
    assert table["id"][7].as_py() == "007", "what looks like a number stays as it was"
    run("query one.tamis --from a.parquet -c email --only no -o b.arrow")
    assert feather.read_table("b.arrow").num_rows == int((~expected).sum())
    code, out, _ = run("query keys.tamis --from keys.csv -c email --only maybe")
    assert out == (folder / "keys.csv").read_text()
    nulls = pa.table({"k": pa.array(["user1@example.org", None, "nobody"])})
    parquet.write_table(nulls, "nulls.parquet")
    assert run("query keys.tamis --from nulls.parquet --answer-column answer")[1] == (
        "k,answer\nuser1@example.org,maybe\n,no\nnobody,no\n"
    )
    assert run("build nulls.parquet --fpr 0.01 -o nulls.tamis --json")[1].count('"keys": 2')


@pytest.mark.parametrize("compression", ["gzip", "bz2", "lzma", "zstd", None])
@pytest.mark.parametrize("name", ["keys.txt", "keys.csv"])
def test_compressed_input_is_the_same(run, folder, compression, name):
    data = (folder / name).read_bytes()
    if compression == "zstd":
        data = pytest.importorskip("pyarrow").compress(data, "zstd", asbytes=True)
    elif compression:
        data = pytest.importorskip(compression).compress(data)
    if name == "keys.csv":
        pytest.importorskip("pyarrow")
    (folder / f"compressed-{name}").write_bytes(data)
    column = "-c email" if name == "keys.csv" else ""
    _, out, _ = run(f"query keys.tamis --from compressed-{name} {column} --count --json")
    assert json.loads(out) == {"queries": 2000, "maybe": 2000, "no": 0}


@pytest.mark.parametrize("name", ["keys.txt", "keys.csv", "keys.parquet", "keys.arrow"])
def test_standard_input_is_a_file_too(run, folder, name):
    if name != "keys.txt":
        pytest.importorskip("pyarrow")
        from pyarrow import csv, feather, parquet

        table = csv.read_csv(folder / "keys.csv")
        parquet.write_table(table, folder / "keys.parquet")
        feather.write_feather(table, folder / "keys.arrow")
    how = {"keys.txt": "", "keys.csv": "--format csv -c email"}.get(name, "-c email")
    _, out, _ = run(f"query keys.tamis --from - {how} --count --json", stdin=name)
    assert json.loads(out) == {"queries": 2000, "maybe": 2000, "no": 0}


def test_wrong_input_leaves_the_output_as_it_was(run, folder):
    (folder / "kept.txt").write_text("as it was")
    refused(run("query keys.tamis --from absent.txt -o kept.txt"))
    assert (folder / "kept.txt").read_text() == "as it was"
    assert run("query keys.tamis --from keys.txt --only no -o kept.txt")[0] == 0
    assert (folder / "kept.txt").read_text() == ""


@pytest.mark.filterwarnings("ignore::tamis.KeyKindWarning")
def test_integers_are_not_text(run):
    run("build numbers.txt --integers --fpr 0.0001 -o n.tamis")
    f = tamis.load("n.tamis")
    assert f.contains(range(2000)).all()
    assert run("query n.tamis 7 --integers")[0] == 0
    assert run("query n.tamis --from numbers.txt --count --json")[1].count('"maybe": 2000') == 0


def test_merge(run):
    assert run("merge one.tamis two.tamis -o both.tamis")[0] == 0
    assert run("verify both.tamis --keys keys.txt")[0] == 0
    run("build keys.txt --kind bloom --capacity 3000 --fpr 0.01 -o all.tamis")
    assert tamis.load("all.tamis").contains(KEYS).all()


def test_dedup(run, folder):
    code, out, err = run("dedup log.txt --window 100000")
    assert code == 0
    once = list(dict.fromkeys(ASKED))
    assert 0.99 * len(once) <= len(out.splitlines()) <= len(once)
    assert "of 20,000 records" in err
    (folder / "timed.csv").write_text("at,k\n0,a\n1,a\n50,a\n51,b\n")
    pytest.importorskip("pyarrow")
    _, out, _ = run("dedup timed.csv -c k --window 100 --seconds 10 --at at")
    assert out == "at,k\n0,a\n50,a\n51,b\n"
    (folder / "dated.csv").write_text("at,k\n2024-01-01 00:00:00,a\n2024-01-01 00:00:09,a\n")
    _, out, _ = run("dedup dated.csv -c k --window 100 --seconds 10 --at at")
    assert out == "at,k\n2024-01-01 00:00:00,a\n"
    _, out, _ = run("dedup log.txt --gap 1000 --bits 100000 -o once.txt --json")
    assert json.loads(out)["records"] == len(ASKED)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "Europe/Paris"])
def test_dedup_by_a_column_of_timestamps(run, unit, zone):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    times = pa.array([0, 100, 300], pa.timestamp("s", tz=zone)).cast(pa.timestamp(unit, tz=zone))
    parquet.write_table(pa.table({"k": ["a", "a", "a"], "ts": times}), "timed.parquet")
    code, _, err = run(
        "dedup timed.parquet -c k --window 100 --seconds 150 --at ts -o once.parquet"
    )
    assert (code, parquet.read_table("once.parquet").num_rows) == (0, 2)
    assert "dropped 1 of 3 records" in err
    code, _, err = run(
        "dedup timed.parquet -c ts --window 100 --seconds 150 --at k -o once.parquet"
    )
    assert code == 2
    assert "column 'k'" in err


def test_guard_before_a_table(run):
    code, out, _ = run("guard shop.db --table users --key email --queries log.txt --json")
    found = json.loads(out)
    assert code == 0
    assert found["queries"] == len(ASKED)
    assert found["true_positives"] == sum(asked in set(KEYS) for asked in ASKED)
    assert (
        "reads wasted"
        in run("guard shop.db --table users --key email --queries log.txt --kind bloom")[1]
    )


def test_a_guard_of_integers_is_not_asked_for_text(run):
    with closing(sqlite3.connect("shop.db")) as db, db:
        db.execute("CREATE TABLE numbered (id INTEGER PRIMARY KEY)")
        db.execute("INSERT INTO numbered VALUES (7)")
    Path("numbers.txt").write_text("7\n8\n")
    line = "guard shop.db --table numbered --key id --queries numbers.txt --json"
    code, _, err = run(line)
    assert code == 2
    assert "all keys of 'numbered' are integers, and the queries are text: pass --integers" in err
    code, out, _ = run(f"{line} --integers")
    assert (code, json.loads(out)["true_positives"]) == (0, 1)
    code, _, err = run(
        "guard shop.db --table users --key email --queries numbers.txt --integers --json"
    )
    assert code == 2
    assert "are text or blobs, and the queries are integers" in err


def test_inspect_and_verify_find_counts_that_contradict_the_sections(run, folder):
    pytest.importorskip("pyarrow")
    tamis.Collection.build(
        {"a": range(300), "b": range(9)}, kind="stacked", path=folder / "r.tamis"
    )
    *head, (directory, *frames) = parts((folder / "r.tamis").read_bytes())
    (other,) = tamis.split(range(5000, 5300), 1)
    frames[0] = (*frames[0][:2], other)
    (folder / "r.tamis").write_bytes(frame(*head, [directory, *frames]))
    golden = (GOLDEN / "v1-skipping.tamis").read_bytes()
    no_sources = {"sources": []}
    emptied = with_values(golden, lambda each: {**each, "sources": each["sources"] | no_sources})
    (folder / "i.tamis").write_bytes(emptied)
    for command in ("inspect", "verify"):
        assert "the filter of run 'a' rejects keys of the run" in refused(run(f"{command} r.tamis"))
        assert "the sources of the index do not name" in refused(run(f"{command} i.tamis"))
