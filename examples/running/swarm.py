"""Runs a swarm of real processes to its end, kills one node and the coordinator on the way, and checks what is left."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from deploy.local_swarm.daemon_log import events
from deploy.local_swarm.processes import BIN, JSON_LOG, Process, SwarmError, left_with
from thinwire_coordinator.cli.status_client import as_organizer, open_channel
from thinwire_proto.wire.service_pb2 import StatusReply, StatusRequest
from thinwire_proto.wire.service_pb2_grpc import SwarmStub

Curves = dict[str, list[tuple[int, float]]]
NODES = 3
KILL_NODE_AT = 0.3
KILL_COORDINATOR_AT = 0.6
"""Shares of the run's steps at which a process is killed with SIGKILL and started again."""
POLL_S = 0.2
END_S = 10.0


@dataclass(frozen=True)
class Finished:
    """A run that is complete.

    losses: for each held-out set, (step, loss in nats per token). bytes_per_node: what a node sent and
    received in rounds, by the nodes' own counts. seconds: from the first round to the end, with both kills.
    """

    status: StatusReply
    losses: Curves
    bytes_per_node: float
    seconds: float
    replicas_equal: bool
    verified: str


class Swarm:
    """The processes of one run, in a folder. Leaving the `with` block ends all of them."""

    def __init__(self, folder: Path, console: Console) -> None:
        self.folder = folder
        self.state = folder / "coordinator"
        self._console = console
        self._all: list[Process] = []
        self._address = "127.0.0.1:0"
        self._coordinator: Process | None = None
        self._nodes: dict[str, Process] = {}

    def __enter__(self) -> Swarm:
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self._all:
            process.tell(signal.SIGTERM)
        for process in self._all:
            process.end(END_S)

    def run(self, serve: Sequence[str]) -> Finished:
        """Run to the end. serve: further options of `thinwire-coordinator serve`. Raises SwarmError."""
        self._start_coordinator(*serve)
        for number in range(1, NODES + 1):
            self._start_node(f"node-{number}")
        self._until(lambda status: status.tokens > 0)
        began = time.monotonic()
        steps = self._status().steps
        self._until(lambda status: status.step >= KILL_NODE_AT * steps)
        self._say("killing node-2 with SIGKILL, and starting it again")
        self._kill(self._nodes["node-2"])
        self._start_node("node-2")
        self._until(lambda status: status.step >= KILL_COORDINATOR_AT * steps)
        self._say("killing the coordinator with SIGKILL, and starting it again")
        assert self._coordinator is not None
        self._kill(self._coordinator)
        self._start_coordinator()
        self._until(lambda status: not any(node.running for node in self._nodes.values()))
        seconds = time.monotonic() - began
        self._until(lambda status: status.measured_step >= status.step == status.steps)
        status = self._status(fingerprint=True)
        self._check_nodes()
        losses = curves_of(*(process.text() for process in self._all if process.name == "coordinator"))
        return Finished(
            status, losses, self._bytes_per_node(), seconds, self._replicas_equal(status), self.command("verify")
        )

    def command(self, name: str, *more: str) -> str:
        """Run a command of the coordinator on the state directory and return its output. Raises SwarmError."""
        return run_command("thinwire-coordinator", name, "--state-dir", str(self.state), *more)

    def _start(self, name: str, *command: str) -> Process:
        process = Process(name, list(command), self.folder / f"{name}.{len(self._all)}.log")
        self._all.append(process)
        return process

    def _start_coordinator(self, *more: str) -> None:
        command = ["thinwire-coordinator", "serve", "--state-dir", str(self.state), "--listen", self._address]
        command += ["--wait-for", str(NODES), "--invite-file", str(self.folder / "invite"), *JSON_LOG]
        self._coordinator = self._start("coordinator", *command, *more)
        ready = self._coordinator.wait_until_ready(self.state)
        self._address = str(ready["address"])
        self._say(f"the coordinator listens on {self._address}; its page: {ready['page']}")

    def _start_node(self, name: str) -> None:
        invite = f"@{self.folder / 'invite'}"
        command = ["thinwire-node", "start", invite, "--name", name, "--threads", "1", *JSON_LOG]
        self._nodes[name] = self._start(name, *command, "--state-dir", str(self.folder / name))

    def _kill(self, process: Process) -> None:
        process.tell(signal.SIGKILL)
        process.popen.wait()

    def _status(self, *, fingerprint: bool = False) -> StatusReply:
        with open_channel(self._address) as channel:
            request, metadata = StatusRequest(fingerprint=fingerprint), as_organizer(self.state)
            return SwarmStub(channel).Status(request, timeout=60, metadata=metadata)

    def _until(self, holds: Callable[[StatusReply], bool]) -> None:
        """Wait until a condition on the status holds. Raises SwarmError if a process ends meanwhile."""
        shown = -1
        while not holds(status := self._status()):
            if status.step // 20 != shown:
                shown = status.step // 20
                loss = f", training loss {status.loss_training:.3f}" if status.HasField("loss_training") else ""
                self._say(f"step {status.step} of {status.steps}{loss}")
            assert self._coordinator is not None
            if not self._coordinator.running:
                raise SwarmError(f"the coordinator has ended:\n{self._coordinator.tail()}")
            self._check_nodes()
            time.sleep(POLL_S)

    def _check_nodes(self) -> None:
        """Raises SwarmError if a node has ended before the run, or with an error."""
        for node in self._nodes.values():
            if not node.running and (node.popen.returncode or not self._is_over()):
                raise SwarmError(f"{node.name} has ended:\n{node.tail()}")

    def _is_over(self) -> bool:
        status = self._status()
        return bool(status.step >= status.steps)

    def _bytes_per_node(self) -> float:
        """Means over all nodes. A killed process reports nothing, so the coordinator's counts since its restart do not
        cover the run; the nodes that were never killed do."""
        totals = [node.events("node.totals")[-1] for name, node in self._nodes.items() if name != "node-2"]
        return float(sum(entry["sent_bytes"] + entry["received_bytes"] for entry in totals)) / len(totals)

    def _replicas_equal(self, status: StatusReply) -> bool:
        own = (status.step, status.fingerprint)
        return not status.fingerprints_different and all(left_with(node) == own for node in self._nodes.values())

    def _say(self, text: str) -> None:
        self._console.print(text)


def curves_of(*logs: str) -> Curves:
    """The held-out losses that a coordinator logged, in all its lives."""
    found: dict[str, dict[int, float]] = {}
    for entry in (entry for log in logs for entry in events(log, "coordinator.loss_measured")):
        found.setdefault(str(entry["set"]), {})[int(entry["step"])] = float(entry["loss"])
    return {name: sorted(curve.items()) for name, curve in found.items()}


def run_command(*command: str) -> str:
    """Run an installed program and return what it printed. Raises SwarmError with its errors if it fails."""
    done = subprocess.run([str(BIN / command[0]), *command[1:]], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SwarmError(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
    return done.stdout
