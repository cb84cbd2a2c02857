"""Commands do not destroy data: no input, no earlier output, no option."""

import bz2
import gzip
import lzma
import os
import resource
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from command import refused

import tamis
from tamis import cli
from tamis.cli import _readers

LINES = [f"line {i}" for i in range(3000)]
DEDUP = "dedup {} --window 10000 -o {}"


@pytest.fixture
def place(tmp_path, monkeypatch, run):
    """A folder with lines of which each comes twice, and links to them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("\n".join(LINES * 2) + "\n")
    (tmp_path / "keys.txt").write_text("\n".join(LINES) + "\n")
    for name in ("a.txt", "keys.txt"):
        (tmp_path / f"soft-{name}").symlink_to(name)
        (tmp_path / f"hard-{name}").hardlink_to(tmp_path / name)
    tamis.Bloom.build(LINES, fpr=0.01).save(tmp_path / "f.tamis")
    return tmp_path


def left_over(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith(".tamis")]


def tamis_process(line, **options):
    command = [sys.executable, "-m", "tamis", *line.split()]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **{**pipes, **options})


@pytest.mark.parametrize(
    "names", ["a.txt a.txt", "soft-a.txt a.txt", "a.txt soft-a.txt", "hard-a.txt a.txt"]
)
def test_a_file_is_replaced_by_its_own_records(run, place, names):
    before, after = names.split()
    assert run(DEDUP.format(before, after))[0] == 0
    assert (place / after).read_text().splitlines() == LINES
    assert (place / "soft-a.txt").is_symlink()
    assert left_over(place) == []


def test_an_error_midway_changes_nothing(run, place):
    (place / "b.jsonl").write_text('{"a": 1}\n' * 5 + "not JSON\n")
    text = (place / "b.jsonl").read_text()
    refused(run("dedup b.jsonl -c a --window 10 -o b.jsonl"))
    assert (place / "b.jsonl").read_text() == text
    (place / "kept.txt").write_text("earlier")
    refused(run("dedup missing.txt --window 10 -o kept.txt"))
    assert (place / "kept.txt").read_text() == "earlier"
    assert left_over(place) == []


@pytest.mark.parametrize(
    "line",
    [
        "build keys.txt --fpr 0.01 -o {}",
        "build f.tamis --fpr 0.01 --queries keys.txt -o {}",
        "plan keys.txt --fpr 0.01 -o {}",
        "plan 1000 --queries keys.txt --fpr 0.01 -o {}",
        "advise keys.txt --report {}",
        "query f.tamis --from a.txt --secret keys.txt -o {}",
        "search build keys.txt -o {}",
        "search build a.txt --stop-words keys.txt -o {}",
        "guard keys.txt --table t --key k --queries a.txt --install --snapshot {}",
        "guard a.db --table t --key k --queries keys.txt --install --snapshot {}",
        "guard a.db --table t --key k --queries a.txt --filter keys.txt --install --snapshot {}",
    ],
)
@pytest.mark.parametrize("name", ["keys.txt", "./keys.txt", "soft-keys.txt", "hard-keys.txt"])
def test_an_output_that_is_an_input_is_refused(run, place, line, name):
    before = (place / "keys.txt").read_bytes()
    (place / "keys.txt").chmod(0o600)
    refused(run(line.format(name)))
    assert (place / "keys.txt").read_bytes() == before


def test_a_filter_is_not_replaced_by_records(run, place):
    before = (place / "f.tamis").read_bytes()
    for line in ("query f.tamis --from a.txt -o f.tamis", "query f.tamis k -o ../{}/f.tamis"):
        err = refused(run(line.format(place.name)))
        assert "f.tamis', which the command also reads" in err
    assert (place / "f.tamis").read_bytes() == before
    err = refused(run("advise keys.txt --report out -o out"))
    assert "--report must not be 'out', which the command also writes" in err


def test_stop_words_are_not_replaced_by_an_index(run, place):
    (place / "words").write_text("the of")
    err = refused(run("search build a.txt --stop-words words -o words"))
    assert "'words', which the command also reads" in err
    assert (place / "words").read_text() == "the of"


def test_a_table_of_an_index_is_not_replaced(run, place):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"user": LINES}), place / "data.parquet")
    before = (place / "data.parquet").read_bytes()
    assert "an index is not a .parquet file" in refused(
        run("skip build data.parquet -c user -o data.parquet")
    )
    assert run("skip build data.parquet -c user -o i.tamis")[0] == 0
    where = ["--where", "user=line 5"]
    err = refused(run(["skip", "query", "i.tamis", *where, "-o", "data.parquet"]))
    assert "a file of the index" in err
    assert "which the command also reads" in refused(
        run(["skip", "query", "i.tamis", *where, "-o", "i.tamis"])
    )
    assert (place / "data.parquet").read_bytes() == before


def test_merging_into_one_of_the_filters(run, place):
    for name, keys in (("one", LINES[:1500]), ("two", LINES[1500:])):
        each = tamis.Bloom(3000, fpr=0.01)
        each.update(keys)
        each.save(place / f"{name}.tamis")
    assert run("merge one.tamis two.tamis -o one.tamis")[0] == 0
    assert tamis.load(place / "one.tamis").contains(LINES).all()


@pytest.mark.parametrize("ending", ["txt", "csv", "parquet", "csv.gz", "db", "html"])
def test_a_filter_has_no_name_of_data(run, place, ending):
    err = refused(run(f"build keys.txt --fpr 0.01 -o out.{ending}"))
    assert f"a filter is not a .{ending.split('.')[-1]} file" in err


def test_a_folder_is_not_replaced(run, place):
    (place / "folder").mkdir()
    for line in (DEDUP.format("a.txt", "folder"), "build keys.txt --fpr 0.1 -o folder",
                 "plan 100 --fpr 0.1 -o folder", "search build keys.txt -o folder"):  # fmt: skip
        assert "is a directory" in refused(run(line))


def test_a_demo_takes_no_folder_of_others(run, place):
    (place / "mine").mkdir()
    (place / "mine" / "keys.db").write_text("my own")
    assert "--output must be a new or empty folder" in refused(run("demo -o mine"))
    assert (place / "mine" / "keys.db").read_text() == "my own"


READ = {
    "csv": lambda data: data, "txt": lambda data: data, "tsv": lambda data: data,
    "csv.gz": gzip.decompress, "tsv.bz2": bz2.decompress, "csv.xz": lzma.decompress,
}  # fmt: skip


@pytest.mark.parametrize("ending", ["csv", "tsv", "csv.gz", "tsv.bz2", "csv.xz"])
def test_the_name_of_an_output_decides_its_format(run, place, ending):
    (place / "t.csv").write_text("a,b\n1,x\n1,y\n2,z\n")
    assert run(f"dedup t.csv -c a --window 10 -o out.{ending}")[0] == 0
    by = "\t" if "tsv" in ending else ","
    text = READ[ending]((place / f"out.{ending}").read_bytes()).decode()
    assert text == f"a{by}b\n1{by}x\n2{by}z\n"
    assert run(f"dedup out.{ending} -c a --window 10 -o again.csv")[0] == 0
    assert (place / "again.csv").read_text() == "a,b\n1,x\n2,z\n"


@pytest.mark.parametrize("ending", ["jsonl", "ndjson.gz", "parquet", "pq", "arrow", "csv.zst"])
def test_tables_in_other_formats(run, place, ending):
    pytest.importorskip("pyarrow")
    (place / "t.csv").write_text("a,b\n1,x\n1,y\n2,z\n")
    assert run(f"dedup t.csv -c a --window 10 -o out.{ending}")[0] == 0
    name = ending.replace("pq", "parquet")
    (place / f"out.{ending}").rename(place / f"in.{name}")
    code, out, _ = run(f"query f.tamis --from in.{name} -c b --count")
    assert (code, out.split()[0]) == (1, "2")


@pytest.mark.parametrize(
    ("input", "output", "said"),
    [
        ("t.csv", "out.txt", "the name of an output of tables must end in .csv"),
        ("t.csv", "out.xlsx.gz", "the name of an output of tables must end in .csv"),
        ("a.txt", "out.parquet", "the input is lines of text, which cannot be written as"),
        ("a.txt", "out.csv.gz", "the input is lines of text, which cannot be written as"),
        ("t.jsonl", "out.csv", "the input is JSON lines, which cannot be written as"),
    ],
)
def test_a_name_that_does_not_fit_is_refused(run, place, input, output, said):
    (place / "t.csv").write_text("a\n1\n")
    (place / "t.jsonl").write_text('{"a": 1}\n')
    (place / output).write_text("earlier")
    assert said in refused(run(DEDUP.format(input, output)))
    assert (place / output).read_text() == "earlier"
    assert left_over(place) == []


@pytest.fixture
def inputs(place):
    """Inputs of every command that writes a file."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    lines = [f"line {i}" for i in range(20_000)]
    (place / "a.txt").write_text("\n".join(lines))
    (place / "t.csv").write_text("a,b\n" + "".join(f"{i},x{i}\n" for i in range(20_000)))
    pq.write_table(pa.table({"user": lines}), place / "data.parquet", row_group_size=1000)
    for name in ("one", "two"):
        each = tamis.Bloom(40_000, fpr=1e-4)
        each.update(lines)
        each.save(place / f"{name}.tamis")
    with closing(sqlite3.connect(place / "shop.db")) as db, db:
        db.execute("CREATE TABLE users (email TEXT PRIMARY KEY)")
        db.executemany("INSERT INTO users VALUES (?)", [(line,) for line in lines])
    return place


WRITING = {
    "build a.txt --fpr 0.001 -o {}": "out.tamis",
    "build a.txt --queries keys.txt --bits-per-key 8 -o {}": "out.tamis",
    "plan 1000 --fpr 0.01 -o {}": "out.json",
    "advise a.txt --queries keys.txt --report {}": "out.html",
    "merge one.tamis two.tamis -o {}": "out.tamis",
    "query f.tamis --from a.txt -o {}": "out.txt",
    "query f.tamis --from t.csv -c b -o {}": "out.csv.gz",
    "query f.tamis --from data.parquet -o {}": "out.parquet",
    "dedup a.txt --window 30000 -o {}": "out.txt",
    "skip build data.parquet -c user -o {}": "out.tamis",
    "search build t.csv --name a --text b -o {}": "out.tamis",
}
"""Commands that write a file, and its name."""


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def limit_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))


@pytest.mark.parametrize("line", [*WRITING, "dedup a.txt --window 30000 -o a.txt"])
def test_a_full_disk_changes_nothing(inputs, line):
    name = WRITING.get(line, "a.txt")
    if name != "a.txt":
        (inputs / name).write_text("earlier")
    before = contents(inputs)
    process = tamis_process(line.format(name), cwd=inputs, preexec_fn=limit_files)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (2, f"tamis: {name}: File too large\n")
    assert contents(inputs) == before


def test_a_database_on_a_full_disk_is_as_it_was(inputs):
    before = contents(inputs)
    guard = "guard shop.db --table users --key email --queries keys.txt"
    for line in (guard, f"{guard} --install --snapshot out.tamis", "demo -o demo"):
        process = tamis_process(line, cwd=inputs, preexec_fn=limit_files)
        _, err = process.communicate(timeout=120)
        assert (process.returncode, err.count("\n")) == (2, 1), err
        assert contents(inputs) == before
    assert [*(inputs / "demo").iterdir()] == []


@pytest.mark.parametrize("line", [*WRITING, "inspect f.tamis", "verify f.tamis --keys keys.txt",
                                  "query f.tamis --from a.txt", "bench --keys 1000"])  # fmt: skip
def test_a_closed_pipe_does_not_stop_a_command(inputs, line):
    name = WRITING.get(line, "f.tamis")
    reads, writes = os.pipe()
    os.close(reads)
    process = tamis_process(line.format(name), cwd=inputs, stdout=writes)
    os.close(writes)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "Error" not in err
    assert (inputs / name).stat().st_size > 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_standard_output_is_an_error(place):
    with open("/dev/full", "w") as full:
        for line in ("dedup a.txt --window 10000", "query f.tamis --from a.txt", "inspect f.tamis"):
            process = tamis_process(line, cwd=place, stdout=full)
            _, err = process.communicate(timeout=120)
            assert process.returncode == 2
            assert "No space left on device" in err


def test_a_closed_pipe_ends_quietly(place):
    (place / "a.txt").write_text("\n".join(f"line {i}" for i in range(500_000)))
    process = tamis_process("dedup a.txt --window 1000000", cwd=place)
    assert process.stdout.readline() == "line 0\n"
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    assert process.wait(120) == 0


def test_an_interrupt_changes_nothing(place):
    (place / "out.txt").write_text("earlier")
    process = tamis_process(
        "dedup - --window 1000 -o out.txt", cwd=place, stdin=subprocess.PIPE, text=False
    )
    process.stdin.write(b"one\n" * 10)
    process.stdin.flush()
    while not left_over(place):  # until the output is open
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err.strip()) == (130, b"tamis: interrupted")
    assert (place / "out.txt").read_text() == "earlier"
    assert left_over(place) == []


def single_options():
    """Every option of every command that takes one value."""
    context = cli.commands.make_context("tamis", ["build"], resilient_parsing=True)
    for name in cli.commands.list_commands(context):
        command = cli.commands.get_command(context, name)
        parts = getattr(command, "commands", {}) or {"": command}
        for part, each in parts.items():
            for param in each.params:
                if getattr(param, "is_flag", True) or param.multiple:
                    continue
                yield f"{name} {part}".split(), max(param.opts, key=len)


@pytest.mark.parametrize(("command", "option"), list(single_options()), ids=str)
def test_an_option_given_twice_is_refused(run, command, option):
    err = refused(run([*command, option, "1", option, "2"]))
    assert f"{option} is given twice" in err


def test_a_file_that_inflates_is_refused(run, place, monkeypatch):
    pytest.importorskip("pyarrow")
    (place / "bomb.gz").write_bytes(gzip.compress(b"PAR1" + bytes(80 << 20)))
    assert "bomb.gz inflates to more than 200 times its size" in refused(
        run("build bomb.gz --fpr 0.1 -o out.tamis")
    )
    usage = _readers.shutil.disk_usage(place)._replace(free=1 << 20)
    monkeypatch.setattr(_readers.shutil, "disk_usage", lambda path: usage)
    (place / "large.gz").write_bytes(gzip.compress(b"ARROW1" + os.urandom(4 << 20)))
    err = refused(run("build large.gz --fpr 0.1 -o out.tamis"))
    assert "large.gz needs more than half of the free space in" in err


HOSTILE = [
    b"a " * 32_000,
    b"x" * 65_000,
    b'h - - [t] "GET ' + b"a" * 65_000,
    b'h - - [t] "' + b"A" * 65_000,
    b'] "GET a" 200 1 ' * 4000,
    b"h i u [" * 9000,
    b'h i u [t] "GET ' * 4000,
]


def test_hostile_lines_of_a_log_take_linear_time(place):
    """One such line took 24 s; a hundred of each kind take a few seconds."""
    good = b'192.0.2.7 - - [10/Oct/2024:13:55:36 +0000] "GET /ada HTTP/1.1" 200 512'
    long = good + b"x" * 70_000
    (place / "log").write_bytes(b"\n".join([*HOSTILE * 100, good, long]))
    line = "query f.tamis --from log --log-format combined --count"
    process = tamis_process(line, cwd=place)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out.split()[0]) == (1, "1")
    assert "1 of 702 lines of log are longer than 65,536 bytes and were not searched" in err
    assert "700 of 702 lines of log do not match --log-format" in err
