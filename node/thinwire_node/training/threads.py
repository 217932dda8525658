"""The threads of a node, and the jobs that they are given by name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol, TypeVar

from thinwire_common.workers import Worker

Result = TypeVar("Result")


class Job(Enum):
    """What a thread is asked to do. The simulator charges time by it."""

    PREPARE = auto()
    ADOPT = auto()
    APPLY = auto()
    MICRO_BATCH = auto()
    EXTRACT = auto()
    SETTLE = auto()
    DROP_GRADIENT = auto()
    FORGET = auto()
    COPY = auto()
    SAVE = auto()
    NOTE = auto()
    DRAIN = auto()


class Thread(Protocol):
    """Jobs run on it in order, one at a time."""

    def run(self, job: Job, work: Callable[..., Result], *arguments: Any) -> asyncio.Future[Result]: ...
    def close(self) -> None:
        """Wait for the job that runs, drop those that are queued."""


class WorkerThread:
    """A thread of the operating system."""

    def __init__(self, name: str) -> None:
        self._worker = Worker(name)

    def run(self, job: Job, work: Callable[..., Result], *arguments: Any) -> asyncio.Future[Result]:
        return self._worker.submit(work, *arguments)

    def close(self) -> None:
        self._worker.close()


@dataclass(frozen=True)
class Threads:
    """compute: whatever touches the parameters and the momentum. saver: what takes long to write. journal: what must be
    written before the next thing happens."""

    compute: Thread
    saver: Thread
    journal: Thread

    def close(self) -> None:
        for thread in (self.compute, self.saver, self.journal):
            thread.close()
