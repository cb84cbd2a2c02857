"""`tamis.show_versions`: versions of installed packages, for a bug report."""

from __future__ import annotations

import platform
import sys
from importlib import metadata

from tamis import _native

_REQUIRED = ("click", "numpy", "rich", "scipy")
_OPTIONAL = (
    "catboost",
    "duckdb",
    "fsspec",
    "lightgbm",
    "matplotlib",
    "obstore",
    "pandas",
    "polars",
    "prometheus_client",
    "psycopg",
    "pyarrow",
    "pymysql",
    "pyspark",
    "redis",
    "rocksdict",
)


def show_versions() -> None:
    """Print the versions of tamis, Python, the system, and the packages that tamis uses.

    >>> show_versions()  # doctest: +ELLIPSIS
    tamis             ...
    """
    build = "debug" if _native.DEBUG_BUILD else "release"
    libc = " ".join(platform.libc_ver())
    facts = {
        "tamis": f"{_native.__version__} ({build} build)",
        "python": f"{platform.python_version()} ({sys.implementation.name})",
        "system": f"{platform.system()} {platform.release()} {platform.machine()} {libc}".strip(),
    }
    for name in (*_REQUIRED, *_OPTIONAL):
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            facts[name] = "not installed"
    for name, value in facts.items():
        print(f"{name:<17} {value}")
