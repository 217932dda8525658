"""The processes of a local swarm. Each runs in its own session and logs to a file; all of them end with the swarm."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from deploy.local_swarm.daemon_log import events, readable
from deploy.local_swarm.ports import free_addresses
from thinwire_common.ready_file import READY_FILE, read_ready

BIN = Path(sys.executable).parent
NODE_END_S = 8.0
"""Time after which a node is killed. A node normally leaves within five seconds."""
COORDINATOR_END_S = 8.0
POLL_S = 0.05
JSON_LOG = ("--log-format", "json")
"""Options of a daemon whose log `Process.events` can read."""

ENDING = tuple(number for name in ("SIGINT", "SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)))
"""Signals that end the swarm: Ctrl-C, kill, and closing the terminal (not available on Windows)."""


class SwarmError(Exception):
    """A process of the swarm ended unexpectedly. The message holds the end of its log."""


class Started(Protocol):
    """The interface of a started program that `Process` needs; `subprocess.Popen` has it."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, number: int, /) -> None: ...
    def kill(self) -> None: ...


def start_installed(command: list[str], out: IO[bytes]) -> Started:
    """Start a program from the environment's folder of programs, in its own session.

    Ctrl-C then reaches only this program, which ends the others in order.
    """
    return subprocess.Popen(
        [str(BIN / command[0]), *command[1:]],
        stdout=out,
        stderr=out,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


class Process:
    """One program with its log file.

    start: starts a command with its output and errors in a file.
    """

    def __init__(
        self,
        name: str,
        command: list[str],
        log: Path,
        start: Callable[[list[str], IO[bytes]], Started] = start_installed,
    ) -> None:
        self.name = name
        self.log = log
        with log.open("wb") as out:
            self.popen = start(command, out)

    @property
    def running(self) -> bool:
        return self.popen.poll() is None

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def tail(self, lines: int = 8) -> str:
        return "\n".join(readable(line) for line in self.text().splitlines()[-lines:])

    def events(self, event: str) -> list[dict[str, Any]]:
        """The log entries of an event, if the process was started with JSON_LOG."""
        return list(events(self.text(), event))

    def ready(self, state_dir: Path) -> dict[str, Any] | None:
        """The content of its ready file; None while it is not ready."""
        return read_ready(state_dir / READY_FILE, self.popen.pid)

    def wait_until_ready(self, state_dir: Path, patience_s: float = math.inf) -> dict[str, Any]:
        """Wait for its ready file and return the content. Raises SwarmError if the process ends first, or after
        `patience_s`."""
        deadline_s = time.monotonic() + patience_s
        while (ready := self.ready(state_dir)) is None:
            if not self.running or time.monotonic() > deadline_s:
                raise SwarmError(f"{self.name} did not start:\n{self.tail(20)}")
            time.sleep(POLL_S)
        return ready

    def tell(self, number: signal.Signals) -> None:
        if self.running:
            self.popen.send_signal(number)

    def end(self, timeout_s: float) -> None:
        """Send SIGTERM, wait up to `timeout_s`, then kill the process if it still runs."""
        self.tell(signal.SIGTERM)
        try:
            self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()


class Processes:
    """A coordinator and its nodes. Leaving the `with` block ends all running processes. metrics: whether they serve
    metrics for Prometheus."""

    def __init__(self, folder: Path, nodes: int, metrics: bool = False) -> None:
        self.folder = folder
        self._wanted = nodes
        self.all: list[Process] = []
        self.coordinator: Process | None = None
        self.page_url = ""
        """URL of the page, once the coordinator is ready."""
        self._prometheus: Process | None = None
        self._metrics = free_addresses(nodes + 2) if metrics else []
        """HOST:PORT of the coordinator's metrics, of each node's metrics, and of Prometheus."""

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *exception: object) -> None:
        # a second Ctrl-C must not leave processes running
        before = {number: signal.signal(number, signal.SIG_IGN) for number in ENDING}
        for node in self.nodes:
            node.tell(signal.SIGTERM)
        for node in self.nodes:
            node.end(NODE_END_S)
        if self.coordinator is not None:
            self.coordinator.end(COORDINATOR_END_S)
        if self._prometheus is not None:
            self._prometheus.end(COORDINATOR_END_S)
        for number, handler in before.items():
            signal.signal(number, handler)

    @property
    def nodes(self) -> list[Process]:
        return [process for process in self.all if process not in (self.coordinator, self._prometheus)]

    def _start(self, name: str, command: list[str]) -> Process:
        with uninterrupted():  # otherwise a signal could leave a process that is not in `all`
            process = Process(name, command, self.folder / f"{name}.log")
            self.all.append(process)
        return process

    def start_coordinator(self, run_file: Path) -> str:
        """Start the coordinator, wait until it is ready, and return its address."""
        command = ["thinwire-coordinator", "serve", "--run", str(run_file), "--state-dir", str(self.state_dir)]
        command += ["--listen", "127.0.0.1:0", "--wait-for", str(self._wanted), *JSON_LOG]
        command += ["--invite-file", str(self.invite_file)]
        if self._metrics:
            command += ["--http", self._metrics[0]]
        self.coordinator = self._start("coordinator", command)
        ready = self.coordinator.wait_until_ready(self.state_dir)  # creating a large model takes minutes
        self.page_url = str(ready["page"])
        return str(ready["address"])

    @property
    def state_dir(self) -> Path:
        return self.folder / "coordinator"

    @property
    def invite_file(self) -> Path:
        return self.folder / "invite"

    def start_nodes(self) -> None:
        threads = max(1, (os.cpu_count() or 1) // self._wanted)
        for number in range(1, self._wanted + 1):
            name = f"node-{number}"
            command = ["thinwire-node", "start", f"@{self.invite_file}", "--name", name]
            command += ["--state-dir", str(self.folder / name)]
            command += ["--threads", str(threads), "--give-up-after", "30", *JSON_LOG]
            if self._metrics:
                command += ["--metrics", self._metrics[number]]
            self._start(name, command)

    @property
    def metrics_urls(self) -> list[str]:
        """URLs of the metrics: the coordinator's first, then the nodes'."""
        served = self._metrics[: 1 + self._wanted]
        return [f"http://{address}/metrics" for address in served]

    def start_prometheus(self) -> list[str]:
        """Scrape all processes, if Prometheus is installed. Returns lines for people with the addresses."""
        coordinator, *nodes, prometheus = self._metrics
        targets = {"coordinator": [coordinator], "node": nodes}
        lines = [f"metrics: {url}" for url in self.metrics_urls]
        if PROGRAM is None:
            return [*lines, HOW_TO_INSTALL]
        self._prometheus = self._start("prometheus", prometheus_command(self.folder, prometheus, targets))
        return [*lines, f"Prometheus: http://{prometheus}"]


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer the signals of ENDING until the end of the block."""
    kept: list[int] = []
    before = {number: signal.signal(number, lambda told, frame: kept.append(told)) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if kept:
            signal.raise_signal(kept[0])


def left_with(node: Process) -> tuple[int, int] | None:
    """(step, fingerprint) of a node's replica, as reported when it left; None if it did not report them, as in a gossip
    run, where each node has parameters of its own."""
    left = node.events("node.left")
    return (left[-1]["step"], int(left[-1]["fingerprint"], 16)) if left else None


PROGRAM = shutil.which("prometheus")
HOW_TO_INSTALL = "Prometheus is not installed, so metrics are not scraped: apt-get install -y prometheus"
RULES = Path(__file__).resolve().parents[1] / "prometheus" / "rules.yml"
SCRAPE_EVERY = "1s"


def prometheus_command(
    folder: Path, listen: str, targets: dict[str, list[str]], *, scrape_every: str = SCRAPE_EVERY
) -> list[str]:
    """Write Prometheus' configuration, and return the command that starts it.

    folder: for configuration and data. targets: addresses by job name.
    """
    jobs = [{"job_name": job, "static_configs": [{"targets": found}]} for job, found in targets.items()]
    configuration = {
        "global": {"scrape_interval": scrape_every, "evaluation_interval": scrape_every},
        "rule_files": [str(RULES)] if RULES.exists() else [],
        "scrape_configs": jobs,
    }
    file = folder / "prometheus.yml"
    file.write_text(json.dumps(configuration, indent=2))  # JSON is valid YAML
    return [
        PROGRAM or "prometheus",
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address={listen}",
    ]
