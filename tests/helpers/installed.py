"""What must work where only the wheel is installed; run by `.ci/installs` in clean environments.

With the names of extras as arguments, what they are for must work as well; without, the error of
what is missing must name the extra.
"""

import subprocess
import sys
import tempfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import tamis

EXTRAS = {
    "arrow": "pyarrow",
    "catboost": "catboost",
    "cloud": "obstore",
    "learned": "lightgbm",
    "mysql": "pymysql",
    "parquet": "pyarrow",
    "plot": "matplotlib",
    "postgres": "psycopg",
    "prometheus": "prometheus_client",
    "redis": "redis",
    "rocksdb": "rocksdict",
    "spark": "pyspark",
}


def command(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tamis", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 2), done.stderr
    return done.stdout + done.stderr


def use_filters(folder: Path) -> None:
    f = tamis.Ribbon.build(["ada", "grace"], fpr=0.001)
    f.save(folder / "f.tamis")
    assert "ada" in tamis.load(folder / "f.tamis", mmap=True)
    assert tamis.advise(1000, bits_per_key=10).best.build(range(1000)).contains(range(1000)).all()
    with tamis.Guard(tamis.stores.SQLite(":memory:"), tamis.Telescoping(100, fpr=0.01)) as g:
        g.put("ada", "1815")
        assert (g.get("ada"), g.get("alan")) == ("1815", None)
    assert list(tamis.dedup(["a", "b", "a"], window=10)) == ["a", "b"]


def use_command_line(folder: Path) -> None:
    (folder / "people.csv").write_text("id,name\n1,ada\n2,grace\n")
    kept = str(folder / "people.tamis")
    assert "2 of 2 keys" in command(
        "build", str(folder / "people.csv"), "-c", "name", "--fpr", "0.001", "-o", kept
    )
    assert command("query", kept, "ada") == "ada\tmaybe\n"
    assert tamis.__version__ in command("--version")


def use_extras(folder: Path, extras: list[str]) -> None:
    for extra, module in EXTRAS.items():
        if extra in extras or "all" in extras:
            __import__(module)
    if find_spec("pyarrow"):
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.table({"k": ["ada"]}), folder / "k.parquet")
        index = tamis.parquet.SkippingIndex.build(
            str(folder / "k.parquet"), columns=["k"], path=folder / "index.tamis"
        )
        assert index.scan({"k": "ada"}).num_rows == 1
    else:
        (folder / "k.parquet").write_bytes(b"PAR1")
        said = command("build", str(folder / "k.parquet"), "--fpr", "0.1", "-o", str(folder / "x"))
        assert "pip install tamis[arrow]" in said, said
    report = folder / "report.html"
    tamis.advise(1000).report(report)
    assert ("<svg" in report.read_text()) == bool(find_spec("matplotlib"))


if __name__ == "__main__":
    declared = set(metadata.metadata("tamis").get_all("Provides-Extra") or ())
    assert declared == {*EXTRAS, "all"}, declared
    files = [str(file) for file in metadata.files("tamis") or ()]
    assert any(".dist-info/sboms/" in file for file in files), "the wheel lists no crates"
    with tempfile.TemporaryDirectory() as temporary:
        use_filters(Path(temporary))
        use_command_line(Path(temporary))
        use_extras(Path(temporary), sys.argv[1:])
