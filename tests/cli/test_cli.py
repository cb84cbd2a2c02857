"""The command line: its output, its exit codes, and one line for every error."""

import gzip
import importlib.util
import json
import os
import resource
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from frames import GOLDEN
from servers import postgres_url  # noqa: F401

import tamis
from tamis import cli

KEYS = [f"user{i}@example.org" for i in range(2000)]
ASKED = [f"user{i}@example.org" for i in np.random.default_rng(0).zipf(1.3, 20_000) + 1900]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of each kind, right and wrong."""
    here = tmp_path_factory.mktemp("cli")
    (here / "keys.txt").write_text("\n".join(KEYS) + "\n")
    (here / "keys.csv").write_text(
        "id,email\n" + "".join(f"00{i},{k}\n" for i, k in enumerate(KEYS))
    )
    (here / "log.txt").write_text("\n".join(ASKED))
    (here / "numbers.txt").write_text("\n".join(map(str, range(2000))))
    (here / "empty.txt").write_bytes(b"")
    (here / "empty.csv").write_bytes(b"")
    (here / "header.csv").write_text("id,email\n")
    (here / "junk").write_bytes(np.random.default_rng(1).bytes(5000))
    (here / "junk.csv").write_bytes(np.random.default_rng(1).bytes(5000))
    (here / "junk.gz").write_bytes(gzip.compress(b"a\nb\n" * 1000)[:30])
    (here / "junk.parquet").write_bytes(b"PAR1" + np.random.default_rng(1).bytes(5000))
    (here / "secret").write_bytes(b"too short")
    f = tamis.Ribbon.build(KEYS, fpr=0.001)
    f.save(here / "keys.tamis")
    damaged = bytearray(f.to_bytes())
    damaged[len(damaged) // 2] ^= 1
    (here / "damaged.tamis").write_bytes(damaged)
    for name, keys in (("one", KEYS[:500]), ("two", KEYS[500:])):
        each = tamis.Bloom(3000, fpr=0.01)
        each.update(keys)
        each.save(here / f"{name}.tamis")
    with closing(sqlite3.connect(here / "shop.db")) as db, db:
        db.execute("CREATE TABLE users (email TEXT PRIMARY KEY, name TEXT)")
        db.executemany("INSERT INTO users VALUES (?, 'x')", [(k,) for k in KEYS])
    return here


@pytest.fixture
def run(folder, monkeypatch, capfd):
    """Run a command in that folder; return its code, its output, and what it says beside."""
    monkeypatch.chdir(folder)
    # What a command draws at random is the same every time.
    made = np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda seed=0: made(seed))

    def run(line, stdin=os.devnull):
        with (folder / stdin).open() as file:
            monkeypatch.setattr(sys, "stdin", file)
            with pytest.raises(SystemExit) as end:
                cli.main(line.split() if isinstance(line, str) else line)
        out, err = capfd.readouterr()
        return end.value.code, out, err

    return run


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
    """However long the file is: this one is larger than memory, and takes no room on disk."""
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


def test_a_guard_takes_its_tables_away(run):
    line = "guard shop.db --table users --key email --queries log.txt --remove"
    assert run(line)[0] == 0
    with closing(sqlite3.connect("shop.db")) as db:
        names = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    assert not [name for name in names if name.startswith("tamis")]
    assert run(line)[0] == 0


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


def test_guard_before_a_table_of_postgres(run, postgres_url):  # noqa: F811
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("CREATE TABLE people (email text PRIMARY KEY)")
        db.cursor().executemany("INSERT INTO people VALUES (%s)", [(key,) for key in KEYS])
    host, port = (part.split("=")[1] for part in postgres_url.split()[:2])
    url = f"postgresql://tamis@{host}:{port}/postgres"
    line = f"guard {url} --table people --key email --queries log.txt --remove --json"
    code, out, _ = run(line)
    assert code == 0
    assert json.loads(out)["true_positives"] == sum(asked in set(KEYS) for asked in ASKED)
    with psycopg.connect(postgres_url) as db:
        for left, count in (
            ("pg_class WHERE relname LIKE 'tamis_people%'", 0),
            ("pg_trigger WHERE tgname LIKE 'tamis%'", 0),
            ("people", 2000),
        ):
            assert db.execute(f"SELECT count(*) FROM {left}").fetchone() == (count,)
    refused(run(line.replace("people", "nobody")))
    refused(run(line.replace(f":{port}", ":1")))


def test_advise(run, folder):
    line = "advise keys.txt --queries log.txt --bits-per-key 8 --miss-cost 1ms"
    code, out, _ = run(f"{line} --json -o best.tamis")
    assert code == 0
    first = json.loads(out)["choices"][0]
    best = tamis.load("best.tamis")
    assert type(best).__name__ == first["filter"]
    assert best.contains(KEYS).all()
    shown = run(line)[1]
    rows = shown.splitlines()
    header = next(i for i, row in enumerate(rows) if row.startswith("filter "))
    assert rows[header + 1].startswith(first["name"])
    assert len(run(f"{line} --explain")[1]) > len(shown)
    assert json.loads(run(f"{line} --measure --json")[1])["choices"][0]["measured_fpr"] < 0.1
    if importlib.util.find_spec("matplotlib"):
        run(f"{line} --report advice.html")
        assert "<svg" in (folder / "advice.html").read_text()
    _, out, _ = run("advise 1000000 --zipf 1.0,100000000 --budget 1MB --need delete --json")
    assert json.loads(out)["situation"]["budget_bits"] == 8_000_000


def test_demo(run, folder, monkeypatch):
    pytest.importorskip("matplotlib")
    from matplotlib import image

    from tamis.cli import demo

    monkeypatch.setattr(demo, "_BUDGETS", (1.0,))
    code, out, err = run("demo --hosts 2000 --visits 4000 --bits-per-key 8 -o demo")
    assert code == 0
    assert "(recommended)" in out
    assert "reads_wasted.png" in err
    assert (folder / "demo/reads_wasted.png").stat().st_size > 10_000
    picture = image.imread(folder / "demo/reads_wasted.png")
    assert picture[..., 3:].min(initial=1) == 1, "readable on a dark page"
    page = (folder / "demo/report.html").read_text()
    assert "(recommended)" in page
    assert "a few hot keys" in page
    assert page.count("<svg") == 2


@pytest.mark.parametrize(
    "line", ["demo --hosts 500 --visits 900 -o bare", "advise 1000 --report bare/report.html"]
)
def test_reports_need_no_matplotlib(run, folder, monkeypatch, line):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    (folder / "bare").mkdir(exist_ok=True)
    code, _, err = run(line)
    assert code == 0
    page = (folder / "bare/report.html").read_text()
    assert "<svg" not in page
    assert "<td data-name" in page
    assert "pip install tamis[plot]" in err + page
    assert not list((folder / "bare").glob("*.png"))


def test_demo_of_own_keys_and_log(run, monkeypatch):
    from tamis.cli import demo

    monkeypatch.setattr(demo, "_BUDGETS", (1.0,))
    code, out, _ = run("demo --keys keys.txt --queries log.txt --bits-per-key 8 -o own --json")
    found = json.loads(out)
    assert code == 0
    assert found["queries"] == len(ASKED) // 2
    assert len({each["filter"] for each in found["runs"]}) == len(found["runs"]) > 4
    absent = sum(asked not in set(KEYS) for asked in ASKED[len(ASKED) // 2 :])
    assert {each["reads_wasted"] + each["reads_saved"] for each in found["runs"]} == {absent}


def test_skip(run, folder):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    (folder / "lake").mkdir()
    for day in range(3):
        events = {"user": [f"user {(7 * i + day) % 900}" for i in range(2000)], "n": range(2000)}
        parquet.write_table(pa.table(events), folder / f"lake/{day}.parquet", row_group_size=100)
    code, out, _ = run("skip build lake/*.parquet -c user -c n -o lake.tamis --json")
    assert code == 0
    assert json.loads(out)["row_groups"] == 60
    command = ["skip", "query", "lake.tamis", "--where", "user=user 7"]
    code, out, err = run(command)
    rows = out.splitlines()
    assert code == 0
    assert rows[0] == "user,n"
    assert len(rows) == 1 + 7
    assert "row groups skipped" in err
    _, out, _ = run([*command, "--json"])
    assert json.loads(out)["skipped"] >= 50
    _, out, _ = run([*command, "--where", "n=0", "--where", "n=1", "--select", "n", "--limit", "5"])
    assert out.splitlines()[0] == "n"
    assert len(run([*command, "--groups"])[1].splitlines()) <= 10
    assert run([*command[:-1], "user=nobody", "-o", "none.parquet"])[0] == 1
    assert parquet.read_table("none.parquet").num_rows == 0
    parquet.write_table(pa.table({"user": ["user 7"], "n": [-1]}), folder / "lake/new.parquet")
    _, out, _ = run("skip add lake.tamis --json")
    assert json.loads(out)["files"] == 4
    assert len(run(command)[1].splitlines()) == 1 + 8
    assert "row groups" in run("skip stats lake.tamis --memory 64kB")[1]
    (folder / "lake/bad.parquet").write_text("nothing")
    assert "bad.parquet" in refused(run(command))
    code, out, err = run([*command, "--on-error", "skip"])
    assert (code, len(out.splitlines())) == (0, 1 + 8)
    for line in (err, run([*command, "--groups"])[2], run("skip add lake.tamis --json")[2]):
        assert f"tamis: not read: {folder}/lake/bad.parquet" in line
    (folder / "lake/bad.parquet").unlink()
    (folder / "indexes").mkdir()
    run("skip build lake/*.parquet -c user -o indexes/lake.tamis")
    for line in ("stats", "add", "query --where=user=nobody"):
        name, *options = line.split()
        command = ["skip", name, "indexes/lake.tamis", *options]
        assert "--source must be given: the index was built over" in refused(run(command))
        assert run([*command, "--source", "lake"])[0] == (1 if options else 0)
    for wrong in (
        "skip query lake.tamis --where user",
        "skip query lake.tamis --where day=3",
        "skip query lake.tamis --where n=three",
        "skip query lake.tamis --where n=3 --select nocolumn",
        "skip stats lake.tamis --memory 10",
        "skip add lake.tamis absent.parquet",
        "skip build lake/*.parquet -c nocolumn -o out.tamis",
        "skip build lake/*.parquet -c n -o nofolder/out.tamis",
    ):
        refused(run(wrong))


def test_search(run, folder):
    (folder / "a.txt").write_text("A drum sieve: a fine mesh on a round frame.")
    (folder / "b.txt").write_text("A conical sieve with a very fine mesh.")
    code, out, _ = run("search build a.txt b.txt -o notes.tamis --json")
    assert code == 0
    assert json.loads(out)["documents"] == 2
    assert run("search query notes.tamis Fine sieve")[1].split() == ["a.txt", "b.txt"]
    assert run("search query notes.tamis conical --json")[1] == '{"documents": ["b.txt"]}\n'
    assert run("search query notes.tamis blade")[:2] == (1, "")
    pytest.importorskip("pyarrow")
    (folder / "notes.csv").write_text("id,body,use\n1,fine mesh,2\n2,fine sieve,7\n3,coarse,9\n")
    columns = "--name id --text body --utility use --stop-words english"
    assert run(f"search build notes.csv {columns} -o table.tamis")[0] == 0
    assert run("search query table.tamis fine")[1].split() == ["2", "1"]
    assert run("search query table.tamis the fine -k 1 --unverified")[1].split() == ["2"]


def test_bench_measures(run):
    code, out, _ = run("bench --keys 1000 --json")
    assert code == 0
    assert {row["filter"] for row in json.loads(out)["filters"]} > {"Quotient", "Cuckoo"}


def test_a_stream_is_answered_as_it_comes(folder):
    command = [sys.executable, "-m", "tamis", "query", "keys.tamis", "--from", "-"]
    with subprocess.Popen(
        command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        for key, answer in (("user1@example.org", "maybe"), ("nobody", "no")):
            process.stdin.write(f"{key}\n")
            process.stdin.flush()
            assert process.stdout.readline() == f"{key}\t{answer}\n"
        process.stdin.close()
    assert process.returncode == 0


def test_many_keys_are_built_in_shards(run, folder, monkeypatch):
    from tamis.cli import build

    monkeypatch.setattr(build, "SHARD_KEYS", 500)
    monkeypatch.setattr("tamis.cli._stream.BLOCK", 1000)
    assert run("build keys.txt --fpr 0.01 -o sharded.tamis")[0] == 0
    f = tamis.load("sharded.tamis")
    assert isinstance(f, tamis.Sharded)
    assert f.contains(KEYS).all()
    assert run("inspect sharded.tamis")[0] == 0


GROUPS = ["search build", "search query", "skip add", "skip build", "skip query", "skip stats"]


@pytest.mark.parametrize("name", [*cli._COMMANDS, *GROUPS])
def test_help_has_an_example(run, name):
    code, out, _ = run(f"{name} --help")
    assert code == 0
    assert f"tamis {name}" in out.split("Example:")[1]


def test_alone_it_shows_its_commands(run):
    code, out, err = run("")
    assert (code, err) == (0, "")
    assert all(f"  {name}" in out for name in cli._COMMANDS)


def test_the_shell_completes(run, monkeypatch):
    for words, completed in (("tamis bu", "build"), ("tamis build --kind r", "ribbon")):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
        monkeypatch.setenv("_TAMIS_COMPLETE", "bash_complete")
        assert run("") == (0, f"plain,{completed}\n", "")


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

INPUTS = ["absent.txt", ".", "empty.txt", "junk", "junk.gz", "junk.parquet"]
TABLES = ["empty.csv", "header.csv", "junk.csv", "keys.csv -c nocolumn", "keys.txt -c email"]


def refused(result):
    code, out, err = result
    assert code == 2, (out, err)
    assert out == ""
    assert err.count("\n") == 1, err
    assert err.startswith("tamis: ")
    assert len(err) < 400
    return err


@pytest.mark.parametrize("line", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize("input", INPUTS)
def test_wrong_input_is_one_line(run, line, input):
    if input == "junk.parquet":
        pytest.importorskip("pyarrow")
    refused(run(line.format(input=input)))


@pytest.mark.parametrize("name", ["build", "dedup", "guard", "query", "verify"])
@pytest.mark.parametrize("input", TABLES)
def test_wrong_tables_are_one_line(run, name, input):
    pytest.importorskip("pyarrow")
    option = "--queries-column" if name == "guard" else "-c"
    err = refused(run(COMMANDS[name].format(input=input.replace("-c", option))))
    if "nocolumn" in input:
        assert "id, email" in err
        assert "nocolumn" in err


@pytest.mark.parametrize(
    "line",
    [
        "nocommand",
        "build keys.txt -o out.tamis",
        "build keys.txt --fpr 2 -o out.tamis",
        "build keys.txt --fpr 0.1 --bits-per-key 8 -o out.tamis",
        "build keys.txt --bits-per-key -1 -o out.tamis",
        "build keys.txt --bits-per-key many -o out.tamis",
        "build keys.txt --kind nokind --fpr 0.1 -o out.tamis",
        "build keys.txt --kind ribbon --capacity 10 --fpr 0.1 -o out.tamis",
        "build keys.txt --kind ribbon --queries log.txt --fpr 0.1 -o out.tamis",
        "build keys.txt --fpr 0.1",
        "build keys.txt --fpr 0.1 -o nofolder/out.tamis",
        "build keys.txt --fpr 0.1 --secret secret -o out.tamis",
        "build keys.txt --plan keys.txt -o out.tamis",
        "build keys.txt --plan absent -o out.tamis",
        "build keys.txt --integers --fpr 0.1 -o out.tamis",
        "plan 1000 --fpr 0.1 --layer nolayer",
        "plan 1000 --fpr 0.1 --max-checks 0",
        "plan 1000 --fpr 0.1 --zipf 1.0",
        "plan 1000 --fpr 0.1 --zipf a,b",
        "plan 1000 --fpr 0.1 --zipf 1,10 --queries log.txt",
        "query keys.tamis",
        "query keys.tamis a --from log.txt",
        "query keys.tamis seven --integers",
        "query keys.tamis --from keys.csv -c email --answer-column id",
        "query keys.tamis --from keys.txt -o nofolder/out.txt",
        "merge one.tamis -o out.tamis",
        "merge one.tamis keys.tamis -o out.tamis",
        "dedup log.txt",
        "dedup log.txt --window 10 --gap 10 --bits 10",
        "dedup log.txt --window -1",
        "dedup log.txt --window 10 --json",
        "dedup log.txt --window 10 --seconds 1 --at time",
        "guard absent.db --table users --key email --queries log.txt",
        "guard keys.txt --table users --key email --queries log.txt",
        "guard shop.db --table notable --key email --queries log.txt",
        "guard shop.db --table users --key nokey --queries log.txt",
        "guard shop.db --table users --key name --queries log.txt",
        "guard shop.db --table users --key email --queries log.txt --fpr 3",
        "advise 1000 --bits-per-key 0",
        "advise 1000 --budget many",
        "advise 1000 --miss-cost soon",
        "advise 1000 --need wings",
        "advise 1000 --present 2",
        "advise 1000 --turnover -1",
        "advise 1000 -o out.tamis",
        "advise 1000 --zipf 1,10 --queries log.txt",
        "advise 1000 --queries log.txt --measure",
        "advise keys.txt --measure",
        "skip",
        "skip build keys.csv -c email -o out.tamis",
        "skip stats keys.tamis",
        "skip stats damaged.tamis",
        "search",
        "search build keys.csv -o out.tamis",
        "search build keys.csv --name id --text nocolumn -o out.tamis",
        "search build keys.csv --name id --text email --utility email -o out.tamis",
        "search build keys.txt --name id --text email -o out.tamis",
        "search build keys.txt -o nofolder/out.tamis",
        "search build keys.txt --stop-words absent -o out.tamis",
        "search build keys.txt --budget 1 -o out.tamis",
        "search query damaged.tamis a",
        "search query keys.tamis a",
        "search query keys.tamis",
        "demo --keys keys.txt",
        "demo --hosts 0",
        "demo --hosts 10 --visits 100 --bits-per-key 0 -o demo",
        "demo --hosts 10 --visits 100 --miss-cost x -o demo",
        "demo --hosts 10 --visits 100 -o keys.txt",
        "bench --keys 0",
        "bench --keys 10 --fpr 7",
        *(f"inspect {file}" for file in ("damaged.tamis", "absent", "junk", "empty.txt", ".")),
        *(f"verify {file}" for file in ("damaged.tamis", "absent", "junk", "empty.txt", ".")),
        *(f"query {file} a" for file in ("damaged.tamis", "absent", "junk", "empty.txt")),
        *(f"merge one.tamis {file} -o out.tamis" for file in ("damaged.tamis", "absent", "junk")),
        "guard shop.db --table users --key email --queries log.txt --filter damaged.tamis",
        "guard shop.db --table users --key email --queries log.txt --filter one.tamis",
    ],
)  # fmt: skip
def test_wrong_arguments_are_one_line(run, line):
    refused(run(line))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("bild keys.txt", "Did you mean 'build'?"),
        ("build keys.txt --bit-per-key 8 -o out.tamis", "--bits-per-key"),
        ("build keys.txt --bits-per-key -1 -o out.tamis", "tamis: --bits-per-key "),
        ("build keys.txt --fpr 2 -o out.tamis", "tamis: --fpr "),
        ("build keys.txt -o out.tamis", "--bits-per-key"),
        ("build keys.txt --fpr 0.1 --seed -1 -o out.tamis", "tamis: --seed "),
        ("build keys.txt --fpr 0.1 -o nofolder/out.tamis", "the folder 'nofolder' does not exist"),
        ("plan 1000 --fpr 0.1 --max-checks 0", "tamis: --max-checks "),
        ("advise 1000 --miss-cost soon", "tamis: --miss-cost "),
        (
            "advise 1000 --fpr 0.1 --bits-per-key 8",
            "pass at most one of --fpr, --bits-per-key and --budget",
        ),
        ("dedup log.txt", "pass exactly one of --window and --gap"),
        ("dedup log.txt --window -1", "tamis: --window "),
        ("dedup log.txt --gap 10", "--gap requires --bits"),
        ("search build keys.txt -o nofolder/out.tamis", "nofolder' does not exist"),
    ],
)
def test_messages_name_what_was_typed(run, line, says):
    assert says in refused(run(line))


def test_a_missing_or_needless_secret_is_named_as_typed(run, folder):
    (folder / "sixteen").write_bytes(bytes(16))
    tamis.Bloom.build(KEYS, fpr=0.1, key=bytes(16)).save("keyed.tamis")
    for line in ("query keyed.tamis a", "inspect keyed.tamis", "verify keyed.tamis"):
        assert refused(run(line)).endswith(": pass --secret\n")
        assert run(f"{line} --secret sixteen")[0] in (0, 1)
    err = refused(run("query keys.tamis a --secret sixteen"))
    assert err.startswith("tamis: --secret is given, but")


@pytest.mark.parametrize("line", ["broken.csv -c id", "keys.txt --format parquet"])
def test_a_file_that_cannot_be_read_is_named(run, folder, line):
    pytest.importorskip("pyarrow")
    (folder / "broken.csv").write_text("id,email\n1\n")
    err = refused(run(f"build {line} --fpr 0.1 -o out.tamis"))
    assert err.startswith(f"tamis: {line.split()[0]}")
    assert err.count(line.split()[0]) == 1


def test_memory_may_be_a_number_of_bytes(run):
    assert "at least" in refused(run("search build keys.txt --budget 1 -o out.tamis"))
    assert run("search build keys.txt --budget 1000000 -o out.tamis")[0] == 0


def test_a_log_has_a_column_of_its_own(run, folder):
    pytest.importorskip("pyarrow")
    (folder / "visits.csv").write_text("who,page\n" + "".join(f"{k},/\n" for k in ASKED[:500]))
    guard = "guard shop.db --table users --key email --json"
    code, out, _ = run(f"{guard} --queries visits.csv --queries-column who")
    assert code == 0
    assert json.loads(out)["true_positives"] == sum(asked in set(KEYS) for asked in ASKED[:500])
    assert "--queries-column" in refused(run(f"{guard} --queries visits.csv"))
    plan = "plan keys.csv -c email --fpr 0.01 --queries visits.csv"
    assert run(f"{plan} --queries-column who")[0] == 0
    assert "--queries-column" in refused(run(plan))


def test_the_help_lays_out_its_example(run):
    out = run("--help")[1]
    assert "\\b" not in out
    assert "\n    tamis query blocked.tamis example.org\n" in out


def test_help_fits_80_columns(run):
    for name in ["", *cli._COMMANDS, *GROUPS]:
        out = run(f"{name} --help")[1]
        assert [line for line in out.splitlines() if len(line) > 80] == [], name
        assert "..." not in out.replace("[ARGS]...", "").replace("]...", "").replace("S...", "")


def test_help_lists_every_command_once_in_groups(run):
    out = run("--help")[1]
    for heading, group in cli._GROUPS.items():
        listed = out.split(f"{heading}:\n")[1].split("\n\n")[0].splitlines()
        assert [line.split()[0] for line in listed] == list(group)


def test_colour_only_where_it_is_seen(run, monkeypatch):
    monkeypatch.setattr("click.utils.should_strip_ansi", lambda _, color=None: color is False)
    assert "\x1b[1mUsage: \x1b[0m" in run("--help")[1]
    assert "\x1b[31mtamis:\x1b[0m No such" in run("bild")[2]
    assert "\x1b[1mRibbon" in run("advise 1000")[1]
    monkeypatch.setenv("NO_COLOR", "1")
    for line in ("--help", "build --help", "bild", "advise 1000"):
        assert "\x1b" not in "".join(run(line)[1:])


def test_advise_names_its_options(run):
    out = run("advise 1000")[1]
    for option in ("--queries", "--present", "--need store", "--need classifier"):
        assert option in out
    for python in ("needs", "present=", "Workload", "log="):
        assert python not in out


def test_advise_finds_the_smallest_at_a_rate(run):
    out = run("advise 100000 --fpr 0.01 --json")[1]
    choices = json.loads(out)["choices"]
    assert choices[0]["name"] == "Ribbon"
    assert all(each["expected_fpr"] <= 0.01 for each in choices)
    assert "at most one of --fpr" in refused(run("advise 1000 --fpr 0.01 --bits-per-key 8"))


def test_missing_keys_are_shown_as_text(run):
    run("build keys.txt --fpr 0.0001 -o a.tamis")
    out = run("verify a.tamis --keys log.txt")[1]
    assert "'user" in out
    assert "b'" not in out
    assert all(
        key.startswith("user")
        for key in json.loads(run("verify a.tamis --keys log.txt --json")[1])["first_denied"]
    )


ACCESS_LOG = [
    f"10.0.0.{i % 7} - ada [10/Oct/2024:13:55:{i % 60:02} +0000] "
    f'"GET /page/{i % 50}?q={i} HTTP/1.1" 404 {i} "https://example.org/" "curl/8.{i % 3}"'
    for i in range(1000)
]


def test_an_access_log_is_noticed(run, folder):
    (folder / "paths.txt").write_text("\n".join(f"/kept/{i}" for i in range(500)))
    (folder / "access.log").write_text("\n".join(ACCESS_LOG))
    for line in (
        "advise paths.txt --queries access.log",
        "plan paths.txt --queries access.log --fpr 0.01",
        "build paths.txt --queries access.log --fpr 0.01 -o out.tamis",
        "query keys.tamis --from access.log",
        "guard shop.db --table users --key email --queries access.log",
    ):
        err = refused(run(line))
        assert "looks like the log of a web server" in err
        assert "--log-format combined" in err
        assert "--regex" in err
    _, out, _ = run("query keys.tamis --from access.log --format text --json")
    assert json.loads(out)["queries"] == 1000
    for options, said in (("", True), (" --format text", False)):
        code, _, err = run(f"build access.log --fpr 0.01 -o out.tamis{options}")
        assert code == 0
        assert ("access.log looks like the log of a web server: each line is a key" in err) == said


def test_a_log_format_and_a_regex_find_the_key_in_a_line(run, folder):
    lines = [*ACCESS_LOG, "", "not a request"]
    (folder / "access.log").write_text("\n".join(lines))
    (folder / "kept.txt").write_text("/page/1?q=1\n10.0.0.3\ncurl/8.2\n/page/7\n")
    assert run("build kept.txt --fpr 0.000001 -o kept.tamis")[0] == 0

    def found(options):
        code, out, err = run(["query", "kept.tamis", "--from", "access.log", "--json", *options])
        assert code == 0
        assert json.loads(out)["queries"] == 1000
        assert err == f"tamis: 1 of 1,001 lines of access.log do not match {options[0]}\n"
        return json.loads(out)["maybe"]

    assert found(["--log-format", "combined"]) == 1
    assert found(["--log-format", "combined", "-c", "host"]) == 143
    assert found(["--log-format", "common", "-c", "agent"]) == 333
    assert found(["--regex", r"GET ([^? ]+)"]) == 20
    assert found(["--regex", r"(?<=GET )[^? ]+"]) == 20
    _, out, _ = run(["query", "kept.tamis", "--from", "access.log", "--regex", r"GET ([^? ]+)",
                        "--only", "maybe"])  # fmt: skip
    assert out.splitlines() == [line for line in ACCESS_LOG if " /page/7?" in line]
    _, out, _ = run(["dedup", "access.log", "--window", "2000", "--regex", r"GET ([^? ]+)"])
    assert out.splitlines() == ACCESS_LOG[:50]
    _, out, _ = run("plan kept.txt --queries access.log --log-format combined --fpr 0.01 --json")
    assert tamis.Plan.from_json(out).n_keys == 4
    for line, says in (
        ("--regex nothing", "access.log has no line that matches --regex"),
        ("--regex (", "--regex is not a regular expression"),
        ("--regex a --log-format combined", "at most one of --regex and --log-format"),
        ("--log-format combined -c cookie", "must be a field of the log (host, user"),
        ("--log-format combined --format csv", "read text, not --format csv"),
    ):
        assert says in refused(run(f"query kept.tamis --from access.log {line} --count"))


def test_csv_needs_no_pyarrow(run, folder, monkeypatch):
    """What is read, and what is written, is the same with and without it."""
    pytest.importorskip("pyarrow")
    (folder / "quoted.csv").write_text(
        'id,note,cost\n007,"a, ""b""\nc",1\n8,user1@example.org,2.5\n9,,3\n'
    )
    (folder / "times.csv").write_text("at,k\n0,a\n1,a\n50,a\n51,b\n")
    (folder / "documents.csv").write_text("id,body,use\n1,fine mesh,2\n2,fine sieve,7\n")
    (folder / "ragged.csv").write_text("a,b\n1,2\n3\n")
    lines = [
        "build keys.csv -c email --fpr 0.01 -o out.tamis",
        "inspect out.tamis --json",
        "build numbers.csv -c n --integers --fpr 0.01 -o out.tamis --json",
        "query keys.tamis --from quoted.csv -c note",
        "query keys.tamis --from quoted.csv -c note --only maybe",
        "query keys.tamis --from keys.csv -c email --count --format csv",
        "dedup times.csv -c k --window 100 --seconds 10 --at at",
        "dedup quoted.csv -c id --window 100 -o once.tsv",
        "plan 1000 --queries quoted.csv --queries-column note --cost-column cost --fpr 0.01",
        "search build documents.csv --name id --text body --utility use -o docs.tamis",
        "search query docs.tamis fine",
    ]
    (folder / "numbers.csv").write_text("n\n" + "\n".join(map(str, range(100))))
    with_pyarrow = [run(line) for line in lines]
    written = (folder / "once.tsv").read_text()
    for name in [name for name in sys.modules if name.split(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert [run(line) for line in lines] == with_pyarrow
    assert (folder / "once.tsv").read_text() == written
    for line, says in (
        ("query keys.tamis --from ragged.csv -c a", "ragged.csv has a row with 1 values"),
        ("query keys.tamis --from keys.csv -c no", "its columns are id, email"),
        ("query keys.tamis --from keys.csv -c email -o x.parquet", "pip install tamis[arrow]"),
        ("plan 9 --queries keys.csv --queries-column id --cost-column email --fpr 0.1", "numbers"),
        ("dedup keys.csv -c id --window 9 --seconds 1 --at email", "neither seconds nor"),
        ("query keys.tamis --from junk.csv -c a", "junk.csv is not a CSV file"),
        ("build empty.csv --fpr 0.1 -o out.tamis", "empty.csv is empty"),
    ):
        assert says in refused(run(line))


@pytest.mark.parametrize(
    "line", ["advise 1000 --report r.html", "demo --hosts 200 --visits 400 -o d"]
)
def test_a_closed_pipe_leaves_the_report_written(folder, line):
    pytest.importorskip("matplotlib")
    command = [sys.executable, "-m", "tamis", *line.split()]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        command, cwd=folder, stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr
    report = folder / ("r.html" if "r.html" in line else "d/report.html")
    assert "</html>" in report.read_text()
    report.unlink()
