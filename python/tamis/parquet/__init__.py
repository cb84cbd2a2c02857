"""Skip what a question cannot need: an index over the row groups of Parquet files."""

try:
    import pyarrow.dataset
    import pyarrow.parquet  # noqa: F401
except ImportError:
    raise ImportError("tamis.parquet needs pyarrow: pip install tamis[parquet]") from None

from tamis.parquet.index import RowGroup, SkippingIndex
from tamis.parquet.statistics import Statistics

__all__ = ["RowGroup", "SkippingIndex", "Statistics"]
