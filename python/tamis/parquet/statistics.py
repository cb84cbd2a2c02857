"""The statistics of a skipping index."""

from __future__ import annotations

from dataclasses import dataclass, field


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
