"""Run tasks on threads and return their results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from tamis._checks import thread_count

Task = TypeVar("Task")
Result = TypeVar("Result")


def map_in_order(
    run: Callable[[Task], Result], tasks: Iterable[Task], threads: int | None
) -> Iterator[Result]:
    """Run tasks on threads, a few ahead of the consumer, and yield their results in order."""
    workers = thread_count(threads)
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="tamis-parquet") as pool:
        try:
            for task in tasks:
                waiting.append(pool.submit(run, task))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
