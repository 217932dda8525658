"""What a node does beside its iterations, for its lines: each errand is short, or ends with its line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Errands:
    """stop_iterations: stops the iterations, for a reason in words. They cannot go on without what an errand has failed
    to do."""

    def __init__(self, stop_iterations: Callable[[str], None]) -> None:
        self._stop_iterations = stop_iterations
        self._under_way: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None
        self._failed = asyncio.Event()

    def __len__(self) -> int:
        """Errands that are under way."""
        return len(self._under_way)

    def begin(self, errand: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(errand)
        self._under_way.add(task)
        self.watch(task)

    def watch(self, task: asyncio.Task[None]) -> None:
        """Take what this task raises as if an errand had."""
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = self._error or error
            self._failed.set()
            self._stop_iterations(str(error))

    async def failure(self) -> None:
        """Raise what an errand or the watched task has raised, once one has."""
        await self._failed.wait()
        self.check()

    def check(self) -> None:
        """Raise what an errand or the watched task has raised, if one has by now."""
        if self._error is not None:
            raise self._error

    async def stop(self) -> None:
        """Stop what is under way."""
        tasks = list(self._under_way)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
