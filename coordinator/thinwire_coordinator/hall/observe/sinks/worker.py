"""The thread of a sink, and the bounded queue in front of it."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from thinwire_common.logs import tell
from thinwire_proto.limits import SINK_RETRY_S

log = logging.getLogger("thinwire.coordinator")

QUEUE_MAX = 1024
"""Items that wait for a sink. At two items in a round, a sink may be away for 500 rounds."""
BATCH_MAX = 256


class SinkWorker:
    """Gives items to a sink, on a thread of its own.

    written, dropped, failed: items by what became of them. Dropped items found the queue full. Failed items were in a
    call of `Sink.write` that raised; they are not tried again, because a part of them may have been written.
    """

    def __init__(self, name: str, sink: Sink, queue_max: int = QUEUE_MAX) -> None:
        self.name = name
        self.written = 0
        self.dropped = 0
        self.failed = 0
        self._sink = sink
        self._queue_max = queue_max
        self._waiting: deque[Point] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._logged: set[type[Exception]] = set()
        # a daemon thread, because a sink that hangs must not keep the process alive
        self._thread = threading.Thread(target=self._run, name=f"sink {name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def offer(self, item: Point) -> None:
        """Queue an item, or drop it if the queue is full. Never blocks."""
        with self._changed:
            full = len(self._waiting) >= self._queue_max
            if not full:
                self._waiting.append(item)
                self._changed.notify()
        if full:
            self.dropped += 1
            if self.dropped == 1:
                text = f"{self.name} does not keep up, so points are left out of it; the metrics count them"
                tell(log, logging.WARNING, "coordinator.sink_failed", text, sink=self.name, reason=text)

    def close(self) -> None:
        """Ask the thread to write what waits, and to end."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def join(self, deadline: float) -> None:
        """Wait for the end of the thread, at most until `deadline` on the monotonic clock."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            text = f"{self.name} has not taken its last points in time; the coordinator ends without it"
            tell(log, logging.WARNING, "coordinator.sink_failed", text, sink=self.name, reason=text)

    def _run(self) -> None:
        while batch := self._next():
            try:
                self._sink.write(batch)
            except Exception as error:  # noqa: BLE001 - a sink that fails must not end the run
                self.failed += len(batch)
                self._failed(error)
                with self._changed:
                    self._changed.wait_for(lambda: self._closing, SINK_RETRY_S)
            else:
                self.written += len(batch)
        try:
            self._sink.close()
        except Exception as error:  # noqa: BLE001
            self._failed(error)

    def _next(self) -> list[Point]:
        """The next items; none once the queue is empty and the sink is to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            return [self._waiting.popleft() for _ in range(min(BATCH_MAX, len(self._waiting)))]

    def _failed(self, error: Exception) -> None:
        """Log the first failure of each kind. A failing disk or link needs no traceback."""
        if type(error) in self._logged:
            return
        self._logged.add(type(error))
        text = f"{self.name} cannot be written: {error}; the run goes on, and later points are tried again"
        if not isinstance(error, OSError):
            log.warning("%s: an exception in the sink", self.name, exc_info=error)
        tell(log, logging.WARNING, "coordinator.sink_failed", text, sink=self.name, reason=repr(error))


TRAINING = "training"
HELD_OUT = "held out"
CONSENSUS = "consensus"


@dataclass(frozen=True)
class Point:
    """Figures of a run at one step.

    series: TRAINING, CONSENSUS, or HELD_OUT and the name of the set. Steps ascend within a series, but a loss may be
    measured after the next step is sealed. step: number of updates sealed, or the median iteration of a gossip
    run. at: Unix time in seconds. values: by name, such as `loss/training`. tokens, bytes_up, bytes_down: totals of
    the run so far, which a restarted coordinator continues. rows: of the ledger by then.
    """

    series: str
    step: int
    at: float
    values: Mapping[str, float]
    tokens: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    rows: int | None = None


class Sink(Protocol):
    """Receives items. One thread calls all methods. They may block and raise anything."""

    def write(self, items: Sequence[Point]) -> None:
        """Write items, in order. When it returns, they have left this process."""

    def close(self) -> None:
        """End. Called once, also if nothing was written or if writing failed."""
