"""What the supervisor writes down: operations on keys, when they began, and when they returned."""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

FOREVER = math.inf
"""The end of an operation that may still take effect."""


@dataclass(slots=True)
class Operation:
    """One call on some keys, by a guard, by a stranger to the table, or by the supervisor itself.

    Kinds: ``put``, ``delete`` and ``get`` are calls; ``seen`` is what the supervisor read from the
    store without a guard; ``lost`` are keys that the server lost in a fault, and ``rolled back``
    keys that it may have brought back.
    """

    process: str
    kind: str
    keys: list
    begin: float
    end: float = FOREVER
    outcome: str = "unknown"
    """``ok``; ``refused`` if nothing was written for sure; ``unknown`` if it may have been."""
    values: list | None = None
    """What a put writes, what a get returned; `None` for a get of which only `absent` is kept."""
    absent: list | None = None
    """Indices of the keys that a get, or the supervisor, did not find."""
    staleness: float = 0.0
    """The ``max_staleness`` of the guard, in seconds."""
    error: str | None = None


@dataclass(slots=True)
class Fault:
    """A fault and when it was; ``detail`` is what was drawn for it."""

    name: str
    begin: float
    end: float = FOREVER
    detail: str = ""


def save(path: Path, header: dict, faults: Iterable[Fault], operations: Iterable[Operation]):
    """Write a history, one JSON object per line: the header, the faults, the operations."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for entry in (header, *map(asdict, faults), *map(asdict, operations)):
            file.write(json.dumps(entry) + "\n")


def load(path: Path) -> tuple[dict, list[Fault], list[Operation]]:
    """Read a history."""
    with path.open() as file:
        header, *entries = map(json.loads, file)
    return (
        header,
        [Fault(**entry) for entry in entries if "kind" not in entry],
        [Operation(**entry) for entry in entries if "kind" in entry],
    )
