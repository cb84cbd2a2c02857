"""Skip row groups of Parquet files that cannot match a query."""

try:
    import pyarrow.dataset
    import pyarrow.parquet  # noqa: F401
except ImportError:
    raise ImportError("tamis.parquet needs pyarrow: pip install tamis[parquet]") from None

from tamis.parquet.index import RowGroup, SkippingIndex
from tamis.parquet.state import SkippingStats

__all__ = ["RowGroup", "SkippingIndex", "SkippingStats"]
