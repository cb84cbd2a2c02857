"""What an index has done."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Statistics:
    """What an index has done since it was opened, and what it found of its files when it looked."""

    questions: int = 0
    considered: int = 0
    """Row groups that a question had to decide about."""
    skipped: int = 0
    """Those of them that were not needed."""
    read: int = 0
    """Row groups that `SkippingIndex.scan` read."""
    wasted: int = 0
    """Those of them that held no row that was asked for."""
    wasted_seconds: float = 0.0
    rows: int = 0
    """Rows that `SkippingIndex.scan` found."""
    stale_files: int = 0
    """Files that have changed since they were read, and are read whole."""
    unknown_files: int = 0
    """Files that were not there then, and are read whole."""
    damaged: int = 0
    """Filters that say maybe to all because their bits are damaged."""

    @property
    def skip_rate(self) -> float:
        """The share of row groups that were skipped."""
        return self.skipped / self.considered if self.considered else 0.0
