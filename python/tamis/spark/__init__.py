"""`tamis.spark`: build and use filters in Apache Spark.

* `filters`: filters, in shards or merged
* `indexes`: skipping indexes, a file per task
* `queries`: rows and joins reduced by a filter, and workloads from logs
* `key_columns`: checks and batches of the columns of keys

Keys are hashed where they are, and only their hashes, 16 bytes per key, cross the shuffle. Each
shard of a filter is built by one task, so the memory of a task depends on the size of a shard, not
on the number of keys. The result has the same bytes as one of `tamis.Sharded.build`.
"""

try:
    import pyarrow  # noqa: F401
    import pyspark.sql  # noqa: F401
except ImportError:
    raise ImportError("tamis.spark needs pyspark and pyarrow: pip install tamis[spark]") from None

from tamis.spark.filters import build
from tamis.spark.indexes import index
from tamis.spark.queries import keep, register, semi_join, workload

__all__ = ["build", "index", "keep", "register", "semi_join", "workload"]
