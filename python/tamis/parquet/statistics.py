"""The statistics of a skipping index, and how often its row groups are used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tamis._locks import fork_safe_lock
from tamis.collection.utility import HALF_LIFE, Accesses, with_unseen
from tamis.parquet.file_set import FileCheck
from tamis.parquet.state import Answer, Flags
from tamis.planning.collection.curves import Floats, Ints


@dataclass
class SkippingStats:
    """What an index has done since it was opened, and the state of its files at the last query."""

    queries: int = 0
    considered: int = 0
    """Row groups that queries had to decide about."""
    skipped: int = 0
    """Row groups that were skipped."""
    read: int = 0
    """Row groups that `SkippingIndex.scan` read."""
    wasted: int = 0
    """Row groups that `SkippingIndex.scan` read and that had no matching row."""
    wasted_seconds: float = 0.0
    rows: int = 0
    """Rows that `SkippingIndex.scan` returned."""
    stale_files: int = 0
    """Files that changed since they were indexed; they are read in full."""
    unknown_files: int = 0
    """Files that are not indexed; they are read in full."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """New and changed files that could not be read at the last query or refresh, and why."""
    damaged: int = 0
    """Filters that return maybe for every key because their bits are damaged."""

    @property
    def skip_rate(self) -> float:
        """The fraction of row groups that were skipped."""
        return self.skipped / self.considered if self.considered else 0.0


class Usage:
    """Counts queries, and the used rows of each row group; several threads may count at once."""

    def __init__(self) -> None:
        self.stats = SkippingStats()
        self._accesses, self._groups = Accesses(), 0
        self._lock = fork_safe_lock()

    @property
    def accesses(self) -> Floats:
        """Used rows of each row group, decayed."""
        return self._accesses.array(self._groups)

    def per_row(self, rows: Ints) -> Floats:
        """Return the used rows per row of each row group, with a share spread evenly."""
        mean = self.accesses / np.maximum(rows, 1)
        return with_unseen(mean, float(mean.sum()) or 1.0)

    def replace_groups(self, remaining: Flags, groups: int) -> None:
        """Keep the counts of the row groups that remain, and start new ones at 0."""
        with self._lock:
            kept = self._accesses.without(np.flatnonzero(~remaining).tolist())
            self._accesses = kept.extend(groups - int(remaining.sum()))
            self._groups = groups

    def count_query(self, files: FileCheck, answer: Answer, damaged: int) -> None:
        """Count a query, and describe the files that it found."""
        with self._lock:
            self.stats.queries += 1
            self.stats.stale_files, self.stats.unknown_files = len(files.stale), len(files.unknown)
            self.stats.damaged = damaged
            self.stats.unreadable = answer.unreadable

    def count_skipped(self, considered: int, read: int) -> None:
        """Count row groups that were skipped, of all that a query had to decide about."""
        with self._lock:
            self.stats.considered += considered
            self.stats.skipped += considered - read

    def count_read(self, group: int, groups: int, rows: int, seconds: float) -> None:
        """Count a row group, of this many, that was read and had this many matching rows."""
        with self._lock:
            self.stats.read += 1
            self.stats.rows += rows
            if rows == 0:
                self.stats.wasted += 1
                self.stats.wasted_seconds += seconds
        if rows:
            self.record([group], groups, rows)

    def record(self, used: Sequence[int], groups: int, rows: float) -> None:
        """Count used rows in row groups, unless an update changed how many there are."""
        with self._lock:
            if self._groups == groups:
                self._accesses.record(list(used), rows, HALF_LIFE, groups)
