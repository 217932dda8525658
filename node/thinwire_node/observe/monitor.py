"""Observes a running node and shows its state on the terminal, in the log, at `/metrics` and in the state directory.

The monitor makes no decisions. A failure in it does not stop the node, except that a node does not start if its ready
file cannot be written."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from thinwire_common.logs import tell
from thinwire_common.ready_file import READY_FILE, prepare_ready, remove_ready, write_ready
from thinwire_common.within import Within
from thinwire_node.daemon import Node
from thinwire_node.observe import status
from thinwire_node.observe.reporter import Reporter
from thinwire_node.observe.terminal import Terminal
from thinwire_node.observe.view import one_line
from thinwire_node.report import Report
from thinwire_proto.clean_text import clean_text
from thinwire_proto.errors import LocalError

if TYPE_CHECKING:
    from thinwire_node.observe.web import MetricsServer

log = logging.getLogger("thinwire.node")

Result = TypeVar("Result")

SHOW_EVERY_S = 1.0
LOG_EVERY_S = 30.0
"""The interval between log lines without a terminal."""


class Monitor:
    """Runs and observes one node.

    metrics: host and port for `/metrics`; None: no metrics. ready: the ready file; by default in the state
    directory. metrics_tls: see `MetricsServer`. on_opened: called once the node obeys its owner."""

    def __init__(
        self,
        node: Node,
        terminal: Terminal | None,
        metrics: tuple[str, int] | None,
        metrics_tls: Path | None = None,
        on_opened: Callable[[], None] | None = None,
    ) -> None:
        self._node = node
        self._terminal = terminal
        self._listen = metrics
        self._metrics_tls = metrics_tls
        self._on_opened = on_opened
        self._metrics_url: str | None = None
        self._ready_file = node.settings.state_dir / READY_FILE
        self._announced = False
        self._reporter = Reporter(node)
        self._ended = asyncio.Event()
        self._own_cpu_s = 0.0
        self._disk_failed = False

    @property
    def cpu_s(self) -> float:
        """CPU time of all observation, including the terminal view, in seconds."""
        return self._own_cpu_s + (self._terminal.cpu_s if self._terminal is not None else 0.0)

    async def run(self, stop: asyncio.Event) -> None:
        """Run the node and observe it. Raises ThinwireError."""
        web = self._open_web()
        self._node.on_opened = self._open
        watching = asyncio.ensure_future(self._watch())
        watching.add_done_callback(_tell_failure)
        announcing = asyncio.ensure_future(self._announce())
        try:
            await self._node.run(stop)
        except Exception as error:
            self._reporter.ended_by = clean_text(str(error)) or type(error).__name__
            raise
        finally:
            self._ended.set()
            await self._end_announcing(announcing)
            await asyncio.wait({watching})
            if web is not None:
                await web.stop()

    def _open(self) -> None:
        prepare_ready(self._ready_file)
        if self._on_opened is not None:
            self._on_opened()

    def _open_web(self) -> MetricsServer | None:
        if self._listen is None:
            return None
        from thinwire_node.observe.web import MetricsServer, NodeMetrics  # noqa: PLC0415 - see `web`

        metrics = NodeMetrics(self._reporter, self._node.record, lambda: self.cpu_s)
        costed = partial(self._costed, metrics.text)
        web = MetricsServer(*self._listen, costed, self._reporter.report, self._metrics_tls)
        web.start()
        self._metrics_url = f"{web.address}/metrics"
        log.info("%s", f"metrics at {self._metrics_url}")
        return web

    async def _announce(self) -> None:
        """Write the ready file once the node has joined."""
        node, settings = self._node, self._node.settings
        await node.has_joined.wait()
        fields = {"node_id": node.node_id, "name": node.name, "address": settings.address}
        try:
            await asyncio.to_thread(write_ready, self._ready_file, metrics=self._metrics_url, **fields)
        except LocalError as error:
            tell(log, logging.WARNING, "node.not_written", str(error), reason=str(error))
        else:
            self._announced = True

    async def _end_announcing(self, announcing: asyncio.Future[None]) -> None:
        if not self._node.has_joined.is_set():
            announcing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await announcing  # a write under way would otherwise end after the removal
        if self._announced:
            with contextlib.suppress(OSError):  # the pid in the file shows readers that it is out of date
                remove_ready(self._ready_file)

    async def _watch(self) -> None:
        now, every_s = time.monotonic, SHOW_EVERY_S if self._terminal is not None else status.WRITE_EVERY_S
        write_at, log_at = now(), now() + LOG_EVERY_S
        while not self._ended.is_set():
            report = self._costed(self._look)
            if now() >= write_at:
                write_at = now() + status.WRITE_EVERY_S
                self._costed(self._node.record.traffic.look)
                await self._write(report)
            if self._terminal is None and now() >= log_at:
                log_at = now() + LOG_EVERY_S
                tell(log, logging.INFO, "node.report", one_line(report), node=asdict(report))
            with contextlib.suppress(asyncio.TimeoutError):
                async with Within(every_s):
                    await self._ended.wait()
        await self._write(self._look())

    def _look(self) -> Report:
        report = self._reporter.report()
        if self._terminal is not None:
            self._terminal.show(report)
        return report

    async def _write(self, report: Report) -> None:
        """Write the report into the state directory, if the node holds it."""
        if not self._node.holds_state:
            return
        try:
            # in a thread, because the disk may be slow
            await asyncio.to_thread(self._costed, status.write, self._node.settings.state_dir, report)
            self._disk_failed = False
        except OSError as error:
            if not self._disk_failed:
                text = f"cannot write the report for `thinwire-node status`: {error}"
                tell(log, logging.WARNING, "node.not_written", text, reason=str(error))
            self._disk_failed = True

    def _costed(self, job: Callable[..., Result], *arguments: Any) -> Result:
        began = time.thread_time()
        try:
            return job(*arguments)
        finally:
            self._own_cpu_s += time.thread_time() - began


def _tell_failure(watching: asyncio.Future[None]) -> None:
    if not watching.cancelled() and (error := watching.exception()) is not None:
        log.error("the monitor failed; the node continues without it", exc_info=error)
