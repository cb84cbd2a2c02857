"""Work on several threads that comes out in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Task = TypeVar("Task")
Done = TypeVar("Done")


def in_order(
    run: Callable[[Task], Done], given: Iterable[Task], threads: int | None
) -> Iterator[Done]:
    """Run tasks on threads, a few ahead of what is taken, and return what they do in order."""
    workers = threads or os.cpu_count() or 1
    waiting: deque[Future[Done]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="tamis-parquet") as pool:
        try:
            for task in given:
                waiting.append(pool.submit(run, task))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
