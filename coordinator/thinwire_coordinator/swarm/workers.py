"""The threads on which everything long runs, so that the event loop only ever passes things on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


class Worker:
    """One thread with a queue: what is given to it runs in order, one at a time."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self.depth = 0
        """Work that waits or runs."""

    def submit(self, work: Callable[..., Result], *arguments: object) -> asyncio.Future[Result]:
        """Queue `work` now; the future may be awaited, or left alone and awaited later."""
        done = asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)
        self.depth += 1
        done.add_done_callback(self._count_down)
        return done

    def _count_down(self, done: asyncio.Future[Any]) -> None:
        self.depth -= 1

    def close(self) -> None:
        """Finish what runs, drop what is queued."""
        self._pool.shutdown(wait=True, cancel_futures=True)


class Workers:
    """replica: where the parameters live. disk: what is written, and the ledger. reading: what followers fetch, so that
    they cannot hold up a seal. merge: payloads. evaluation: held-out loss."""

    def __init__(self) -> None:
        self.replica = Worker("replica")
        self.disk = Worker("disk")
        self.reading = Worker("reading")
        self.merge = Worker("merge")
        self.evaluation = Worker("evaluation")

    def close(self) -> None:
        for worker in (self.reading, self.replica, self.merge, self.evaluation, self.disk):
            worker.close()
