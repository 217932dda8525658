"""The threads of a node and the named jobs that they run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol, TypeVar

from thinwire_common.workers import Worker

Result = TypeVar("Result")


class NodeJob(Enum):
    """The kind of a job. The simulator charges virtual time for each kind."""

    PREPARE = auto()
    ADOPT = auto()
    AMEND = auto()
    APPLY = auto()
    MICRO_BATCH = auto()
    EVALUATE = auto()
    EXTRACT = auto()
    SETTLE = auto()
    DROP_GRADIENT = auto()
    FORGET = auto()
    COPY = auto()
    SAVE = auto()
    NOTE = auto()
    EXCHANGE = auto()
    DRAIN = auto()


class Thread(Protocol):
    """Runs jobs in order, one at a time."""

    def run(self, job: NodeJob, work: Callable[..., Result], *arguments: Any) -> asyncio.Future[Result]: ...
    def close(self) -> None:
        """Wait for the running job and drop the queued ones."""


class WorkerThread:
    """A thread of the operating system."""

    def __init__(self, name: str) -> None:
        self._worker = Worker(name)

    def run(self, job: NodeJob, work: Callable[..., Result], *arguments: Any) -> asyncio.Future[Result]:
        return self._worker.submit(work, *arguments)

    def close(self) -> None:
        self._worker.close()


@dataclass(frozen=True)
class Threads:
    """The threads of one node.

    compute: every job that uses the parameters or the momentum. saver: long writes. journal: short writes that the node
    waits for."""

    compute: Thread
    saver: Thread
    journal: Thread

    def close(self) -> None:
        for thread in (self.compute, self.saver, self.journal):
            thread.close()
