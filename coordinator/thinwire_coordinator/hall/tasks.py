"""Background work whose failure stops the coordinator. The first failure is kept in one future."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from thinwire_proto.errors import ThinwireError

log = logging.getLogger("thinwire.coordinator")


class Tasks:
    """Runs background work and keeps its first exception."""

    def __init__(self) -> None:
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets the first exception, unless it comes after `log_failures`."""
        self._running: set[asyncio.Task[None]] = set()
        self._timed: set[asyncio.Task[None]] = set()
        self._sealing: set[asyncio.Task[None]] = set()
        self._logs_failures = False
        self.failed_late: OSError | ThinwireError | None = None
        """The first OSError or ThinwireError after `log_failures`. Other errors are bugs, and are only logged."""

    def keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task and hold a reference to it, because the event loop holds only a weak one."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        self.must_succeed(task)
        return task

    def log_failures(self) -> None:
        """From now on, nobody looks at `failed`: the process ends. Failures are logged; see also `failed_late`."""
        self._logs_failures = True

    def stop(self) -> None:
        """Cancel what waits for a time, at the end of the process."""
        for task in self._timed:
            task.cancel()

    def seal(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Like `keep`, for work that writes a row of the ledger and then tells all who watch. `settle` waits for it."""
        task = self.keep(work)
        self._sealing.add(task)
        task.add_done_callback(self._sealing.discard)
        return task

    async def settle(self, within_s: float) -> None:
        """Wait for the rows that are being sealed, but not for longer."""
        if self._sealing:
            await asyncio.wait(self._sealing, timeout=within_s)

    def end(self) -> None:
        """Cancel what `settle` did not wait for: it could not go on without the workers."""
        for task in self._sealing:
            task.cancel()

    def keep_timed(self, work: Coroutine[Any, Any, None]) -> None:
        """Like `keep`, for work that goes on until `stop`."""
        task = asyncio.get_running_loop().create_task(work)
        self._timed.add(task)
        task.add_done_callback(self._timed.discard)
        self.must_succeed(task)

    def must_succeed(self, work: asyncio.Future[None]) -> None:
        work.add_done_callback(self._look)

    def fail(self, error: BaseException) -> None:
        if self._logs_failures:
            text = "failed while the coordinator stops: %s"
            if not isinstance(error, ThinwireError | OSError):
                log.error(text, repr(error), exc_info=error)
            elif str(error) not in (str(self.failed_late), str(self._why_failed())):  # a full disk fails several tasks
                self.failed_late = self.failed_late or error
                log.error(text, error)
        elif not self.failed.done():
            self.failed.set_exception(error)

    def _why_failed(self) -> BaseException | None:
        return self.failed.exception() if self.failed.done() and not self.failed.cancelled() else None

    def _look(self, done: asyncio.Future[None]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            self.fail(error)
