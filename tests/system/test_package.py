"""The package as it is installed."""

import ast
import importlib
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from installed import EXTRAS

import tamis
from tamis import _native, filters

PACKAGE = Path(tamis.__file__).parent
ROOT = Path(__file__).parents[2]


def test_version_is_one():
    assert tamis.__version__ == _native.__version__ == importlib.metadata.version("tamis")


def test_is_typed_and_of_the_stable_abi():
    assert (Path(tamis.__file__).parent / "py.typed").exists()
    assert Path(_native.__file__).name == "_native.abi3.so"
    assert Path(_native.__file__).with_name("_native.pyi").exists()


def test_public_names_are_there():
    assert all(hasattr(tamis, name) for name in tamis.__all__)
    assert sorted(tamis.__all__) == tamis.__all__


def test_extras():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    (everything,) = extras.pop("all")
    assert everything == f"tamis[{','.join(sorted(extras))}]"
    assert extras.keys() == EXTRAS.keys()
    readme = (ROOT / "README.md").read_text()
    assert not [name for name in extras if f"`{name}`" not in readme]


HEAVY = {"matplotlib", "numpy", "pyarrow", "rich", "scipy", "sqlite3"}


def heavy_after(statement):
    """The heavy modules that are loaded after a statement in a new process."""
    code = f"import sys, tamis; {statement}; print(*({HEAVY} & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("statement", "loaded"),
    [
        ("tamis.hash_keys, tamis.FormatError", {"numpy"}),
        ("tamis.Bloom(100, fpr=0.01).add('ada')", {"numpy"}),
        ("tamis.from_bytes(tamis.Ribbon.build([1], fpr=0.01).to_bytes())", {"numpy"}),
        ("tamis.Telescoping(100, fpr=0.01).add('ada'); tamis.Guard", {"numpy", "sqlite3"}),
        ("tamis.StableBloom", {"numpy", "scipy"}),
    ],
)
def test_names_load_what_they_use(statement, loaded):
    assert heavy_after(statement) == loaded


@pytest.mark.parametrize("module", [tamis, filters], ids=lambda module: module.__name__)
def test_type_checkers_see_the_public_names(module):
    """Those under TYPE_CHECKING are those that are loaded on first use."""
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    typed = next(node for node in blocks if ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {alias.name for node in typed.body for alias in node.names} - {"Saved"}
    here = {"__version__", "hash_keys"} if module is tamis else {"from_bytes", "load"}
    if "*" in seen:
        seen = seen - {"*"} | set(filters.__all__)
    assert seen - {"metrics", "parquet", "report", "spark", "text"} == set(module.__all__) - here
    assert set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError, match=f"'{module.__name__}' has no attribute 'blom'"):
        module.blom  # noqa: B018


def test_a_debug_build_warns(monkeypatch):
    monkeypatch.setattr(_native, "DEBUG_BUILD", True)
    with pytest.warns(RuntimeWarning, match="built without optimizations"):
        importlib.reload(tamis)


def test_errors_are_also_what_they_are():
    for error in (
        tamis.FormatError,
        tamis.IncompatibleError,
        tamis.CapacityError,
        tamis.BuildError,
    ):
        assert issubclass(error, tamis.TamisError)
        assert issubclass(error, ValueError)
    assert issubclass(tamis.CapacityWarning, UserWarning)


def test_planning_needs_only_the_table_of_kinds_of_what_is_compiled():
    """Also at run time: every module is used where the native module has nothing else."""
    script = Path(__file__).parents[1] / "helpers" / "planning_alone.py"
    done = subprocess.run(
        [sys.executable, script, PACKAGE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    # Of these packages the docstring is all there is.
    assert done.stdout.split() == [
        "tamis.planning.collection",
        "tamis.planning.stable_learned",
        "tamis.planning.stacked",
    ]


def imported(path):
    """The modules of tamis that a file imports, with those that it imports when they are needed."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            within = node.module == "tamis"
            yield from (f"tamis.{a.name}" for a in node.names) if within else [node.module]


def imports_of(part):
    """Pairs of a file and a part of tamis that it imports: ``filters``, ``_native``, …"""
    folder = PACKAGE / part
    for path in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder]:
        for name in imported(path):
            if name.startswith("tamis."):
                yield str(path.relative_to(PACKAGE)), name.split(".")[1]


def test_planning_imports_only_planning():
    others = {
        (path, part)
        for path, part in imports_of("planning")
        if part not in ("planning", "errors", "_types", "_checks", "_format")
    }
    # The table of kinds; and `Plan.build` and `Plan.plot`, which import when they are called.
    assert others == {
        ("planning/kinds.py", "_native"),
        ("planning/plan.py", "filters"),
        ("planning/plan.py", "plotting"),
    }


LAYERS = (
    "planning", "learned", "workload", "filters", "stores", "collection", "deduplication", "text",
    "parquet", "guard", "traces", "plotting", "report", "advice", "metrics", "spark", "testing",
    "cli", "__main__",
)  # fmt: skip
"""From the bottom up, above `errors` and the modules that begin with an underscore."""

UPWARDS = {
    ("planning", "filters"),  # Plan.build
    ("planning", "plotting"),  # Plan.plot, as all that follow
    ("workload", "plotting"),
    ("collection", "plotting"),
    ("guard", "plotting"),
    ("guard", "advice"),  # which filter to choose for a store
}
"""Imports of a higher layer, when a method is called that needs it."""


def test_layers_import_downwards():
    height = {layer: i for i, layer in enumerate(LAYERS)}
    parts = {path.name.removesuffix(".py") for path in PACKAGE.iterdir() if path.suffix != ".html"}
    private = {part for part in parts if part.startswith("_") and part != "__main__"}
    assert {p for p in parts - private if not p.endswith((".so", ".pyi", ".typed"))} == {
        *height, "errors",
    }  # fmt: skip
    for part in sorted({*height, "errors", *private} & parts):
        file = part if (PACKAGE / part).is_dir() else f"{part}.py"
        if not (PACKAGE / file).exists() or part == "__init__":
            continue
        for path, used in imports_of(file):
            used = used if used in parts or used == "_native" else layer_of_name(used)
            if used.startswith("_") or used in ("errors", part):
                continue
            assert used in height, (path, used)
            assert part in height, f"{path} is at the bottom, and imports {used}"
            if height[used] > height[part]:
                assert (part, used) in UPWARDS, f"{path} imports {used}"
                assert used not in eager_imports(PACKAGE / path), f"{path} imports {used} at once"


def layer_of_name(name):
    """The part of tamis that a public name comes from."""
    return tamis._MODULES.get(name, "tamis.filters").split(".")[1]


def eager_imports(path):
    """Parts of tamis that are imported with the module."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    modules = (node.module for node in body if isinstance(node, ast.ImportFrom) and node.module)
    return {name.split(".")[1] for name in modules if name.startswith("tamis.")}


def test_the_kernel_trait_knows_no_structure():
    source = ROOT / "src"
    if not source.exists():
        pytest.skip("tests of an installed package have no Rust sources")
    text = (source / "kernel.rs").read_text(encoding="utf-8")
    listed = re.findall(r"\bcrate::(?:(\w+)|\{([^}]*)\})", text)
    named = {name for one, several in listed for name in re.findall(r"\w+", one or several)}
    assert named <= {"bits", "error", "format", "hash", "lock"}


def test_workflows_run_what_a_developer_runs():
    yaml = pytest.importorskip("yaml")
    folder = ROOT / ".github" / "workflows"
    if not folder.exists():
        pytest.skip("tests of an installed package have no workflows")
    ci = yaml.safe_load((folder / "ci.yml").read_text("utf-8"))
    commands = [step["run"] for step in ci["jobs"]["run"]["steps"] if "run" in step]
    assert commands[-1].endswith(" .ci/run")
    release = yaml.safe_load((folder / "release.yml").read_text("utf-8"))
    builds = release["jobs"]["wheels"]["strategy"]["matrix"]["include"]
    made = {(each["target"], each["manylinux"]) for each in builds if not each["untested"]}
    makefile = (ROOT / "Makefile").read_text("utf-8")
    (targets,) = re.findall(r"for target in ([^;]+);", makefile)
    (compatible,) = re.findall(r"--compatibility manylinux(\d+)", makefile)
    assert made == {(target, compatible) for target in targets.split()}


def test_the_tests_of_every_promise_exist():
    tests = ROOT / "tests"
    listed = re.findall(r"`(\w+\.py)(?:::(\w+))?`", (tests / "README.md").read_text("utf-8"))
    assert len(listed) > 30
    texts = {path.name: path.read_text("utf-8") for path in tests.rglob("*.py")}
    missing = [
        (file, test)
        for file, test in listed
        if file not in texts or (test and f"def {test}(" not in texts[file])
    ]
    assert missing == []
