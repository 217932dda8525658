"""A worker thread with a queue, for work that would block the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


class Worker:
    """One thread with a queue. Jobs run in order, one at a time. `depth` counts the jobs that wait or run."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self.depth = 0

    def submit(self, work: Callable[..., Result], *arguments: object) -> asyncio.Future[Result]:
        """Queue `work` now. The future may be awaited now, later, or never."""
        done = asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)
        self.depth += 1
        done.add_done_callback(self._count_down)
        return done

    def _count_down(self, done: asyncio.Future[Any]) -> None:
        self.depth -= 1

    def close(self) -> None:
        """Finish the running job and drop the queued ones."""
        self._pool.shutdown(wait=True, cancel_futures=True)
