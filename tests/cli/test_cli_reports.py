"""Advice, demo, skipping, search, streams and help."""

import importlib.util
import json
import subprocess
import sys

import pytest
from command import ASKED, COMMANDS, GROUPS, KEYS, refused
from servers import postgres_url  # noqa: F401

import tamis
from tamis import cli


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
    monkeypatch.setattr("tamis.cli._readers.BLOCK", 1000)
    assert run("build keys.txt --fpr 0.01 -o sharded.tamis")[0] == 0
    f = tamis.load("sharded.tamis")
    assert isinstance(f, tamis.Sharded)
    assert f.contains(KEYS).all()
    assert run("inspect sharded.tamis")[0] == 0


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


INPUTS = ["absent.txt", ".", "empty.txt", "junk", "junk.gz", "junk.parquet"]


@pytest.mark.parametrize("line", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize("input", INPUTS)
def test_wrong_input_is_one_line(run, line, input):
    if input == "junk.parquet":
        pytest.importorskip("pyarrow")
    refused(run(line.format(input=input)))
