"""Wrong input is one line, and help fits the terminal."""

import json
import os
import subprocess
import sys

import pytest
from command import ASKED, COMMANDS, GROUPS, KEYS, refused
from servers import postgres_url  # noqa: F401

import tamis
from tamis import cli

TABLES = ["empty.csv", "header.csv", "junk.csv", "keys.csv -c nocolumn", "keys.txt -c email"]


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
