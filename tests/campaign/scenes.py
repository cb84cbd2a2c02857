"""What the campaign runs: the stores, the guards before them, and the faults that each can have."""

import ctypes
import inspect
import subprocess
from dataclasses import dataclass
from pathlib import Path

import tamis
from campaign import backends, faults

LEASE = 0.5
"""Seconds: short, so that many leases are lost."""

STALENESS = 0.15
"""Seconds, for the guards that allow any."""


@dataclass(frozen=True)
class Kind:
    """A store: how to make its backend, its guards, its faults and the size of its disk."""

    make: object
    """A function of a folder and the environment of a server."""
    guards: list
    """For each worker process, the filters of its guards.

    A ``~`` marks one that may be stale, and an ``&`` one that is a `tamis.AsyncGuard`.
    """
    faults: dict
    megabytes: int
    base: int = 300
    """Keys that nobody deletes. Redis is read in batches of 4096, so that it needs more."""


def _without(some, *names):
    return {name: fault for name, fault in some.items() if name not in names}


TWO = [["quotient"], ["telescoping", "~cuckoo"]]
ASYNCHRONOUS = [["&quotient"], ["telescoping", "&~cuckoo"]]
CLIENT, SERVER, NETWORK = faults.CLIENT, faults.SERVER, faults.NETWORK
REMOTE = CLIENT | SERVER | NETWORK

KINDS = {
    "memory": Kind(
        lambda folder, env: backends.Memory(folder),
        [["telescoping", "quotient", "~bloom"]],
        _without(CLIENT, "restore snapshot"),
        8,
    ),
    "rocksdb": Kind(
        lambda folder, env: backends.RocksDB(folder),
        [["telescoping", "~quotient"]],
        CLIENT | faults.DISK,
        64,
    ),
    "sqlite": Kind(
        lambda folder, env: backends.SQLite(folder, shared=False),
        ASYNCHRONOUS,
        CLIENT | faults.DISK,
        16,
    ),
    "sqlite table": Kind(
        lambda folder, env: backends.SQLite(folder, shared=True),
        TWO,
        CLIENT | faults.DISK | faults.STRANGERS,
        16,
    ),
    "redis": Kind(
        lambda folder, env: backends.Redis(folder, env, persistence="none"),
        TWO,
        REMOTE | faults.REDIS,
        64,
        base=5000,
    ),
    "redis aof": Kind(
        lambda folder, env: backends.Redis(folder, env, persistence="aof"),
        [["quotient"], ["&telescoping"], ["~bloom"]],
        REMOTE | faults.REDIS | faults.DISK,
        64,
    ),
    "redis rdb": Kind(
        lambda folder, env: backends.Redis(folder, env, persistence="rdb"),
        TWO,
        REMOTE | faults.REDIS,
        64,
    ),
    "postgres": Kind(
        lambda folder, env: backends.Postgres(folder, env, shared=False),
        ASYNCHRONOUS,
        REMOTE | faults.POSTGRES | faults.DISK,
        160,
    ),
    "postgres table": Kind(
        lambda folder, env: backends.Postgres(folder, env, shared=True),
        TWO,
        REMOTE | faults.POSTGRES | faults.DISK | faults.STRANGERS,
        160,
    ),
}


def plan(faults, count: int, chance) -> list[str]:
    """Draw faults: all of them in a random order, again and again."""
    names: list[str] = []
    while faults and len(names) < count:
        cycle = sorted(faults)
        chance.shuffle(cycle)
        names += cycle
    return names[:count]


def guards(kind: Kind, folder: Path, chance) -> list[list[dict]]:
    """Return the options of each worker's guards."""
    allows = "max_staleness" in inspect.signature(tamis.Guard).parameters
    return [
        [
            {
                "filter": filter.lstrip("~&"),
                "asynchronous": "&" in filter,
                "staleness": STALENESS if allows and "~" in filter else 0.0,
                "seed": chance.getrandbits(32),
                "snapshot": str(folder / f"filter-{i}-{j}"),
            }
            for j, filter in enumerate(filters)
        ]
        for i, filters in enumerate(kind.guards)
    ]


def compile_clock(folder: Path) -> Path | None:
    """Compile what steps clocks; `None` without a compiler."""
    library = folder / "clock.so"
    source = Path(__file__).with_name("clock.c")
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return library


def own_mounts() -> bool:
    """Enter a mount namespace, so that small disks vanish with this process; `False` if refused."""
    libc = ctypes.CDLL(None, use_errno=True)
    clone_newns = 0x20000
    if libc.unshare(clone_newns):
        return False
    private = ["mount", "--make-rprivate", "/"]
    return subprocess.run(private, capture_output=True).returncode == 0


def mount_disk(folder: Path, megabytes: int) -> bool:
    """Mount a small disk on a folder; `False` if refused."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=755", "none", str(folder)]
    return subprocess.run(command, capture_output=True).returncode == 0


def unmount_disk(folder: Path):
    """Unmount a small disk."""
    subprocess.run(["umount", "--lazy", str(folder)], capture_output=True)
