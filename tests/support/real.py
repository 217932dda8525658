"""Real processes for the swarm tests: coordinators and nodes on loopback, with a model that trains in milliseconds."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import grpc

from deploy.local_swarm.ports import free_addresses
from deploy.local_swarm.processes import JSON_LOG, Process, Started, left_with, start_installed
from support.fork_server import can_fork, fork_server, run
from thinwire_coordinator.cli.status_client import as_organizer, open_channel
from thinwire_proto.identity.invite import Invite, parse_invite
from thinwire_proto.wire.service_pb2 import StatusReply, StatusRequest
from thinwire_proto.wire.service_pb2_grpc import SwarmStub

PATIENCE_S = 100.0
END_S = 10.0
LONG_MS = 60_000
"""A round that ends when all have contributed, even where a node is paused for seconds."""
RESTING = ("--max-compute", "10")
"""Options of a node that only has to be there, and leaves the processors to the other tests."""


def run_text(
    steps: int,
    *,
    width: int = 64,
    layers: int = 1,
    heads: int = 2,
    hidden: int = 64,
    model: str = "",
    samples: int = 4,
    length_ms: int = 5000,
    rounds: str = "",
) -> str:
    """model, rounds: more lines of these sections."""
    return f"""
[model]
width = {width}
layers = {layers}
heads = {heads}
hidden = {hidden}
context = 64
{model}
[schedule]
steps = {steps}
warmup_steps = 2
learning_rate = 0.002
[round]
samples = {samples}
weight_max = 4
length_ms = {length_ms}
{rounds}
"""


def without_a_centre(nodes: int, samples: int, rule: str = "adamw", **exchange: str | float) -> str:
    """The end of a run text whose last section is [round]: a run of gossip.

    nodes: that it begins with. samples: of an iteration. rule: its kind. exchange: keys of its section."""
    keys = "\n".join(f"{key} = {json.dumps(value)}" for key, value in exchange.items())
    return f"""
min_contributions = {nodes}
[exchange]
kind = "gossip"
{keys}
[rule]
kind = "{rule}"
samples = {samples}
"""


class RealSwarm:
    """The processes of one test. All of them are killed at its end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "coordinator"
        self.processes: list[Process] = []
        self.address = free_addresses(1)[0]
        self.insecure = False
        """Whether to start the coordinator with --insecure, for clients with an HTTP/2 of their own."""
        self.ready: dict[str, Any] = {}
        """The contents of the newest coordinator's ready file."""
        self._asked: grpc.Channel | None = None
        """What `status` asks through, until the coordinator starts anew or a call fails."""

    def start(self, name: str, *command: str) -> Process:
        log = self.folder / f"{name}.{len(self.processes)}.log"
        process = Process(name, list(command), log, start_quickly)
        self.processes.append(process)
        return process

    def coordinator(self, run: str | None = None, *more: str, through: tuple[str, ...] = ()) -> Process:
        """Start the coordinator and wait until it listens. Keeps its address and port for the next start.

        through: a program in this folder that starts the coordinator instead, and its arguments."""
        self.hang_up()
        if run is not None:
            (self.folder / "RUN.toml").write_text(run)
            more = ("--run", str(self.folder / "RUN.toml"), *more)
        command = [*_program("thinwire-coordinator", through), "serve"]
        command += ["--state-dir", str(self.state), "--listen", self.address, *JSON_LOG]
        command += ["--insecure"] if self.insecure else ["--invite-file", str(self.invite_file)]
        process = self.start("coordinator", *command, *more)
        self.ready = process.wait_until_ready(self.state, PATIENCE_S)
        self.address = self.ready["address"]
        return process

    def node(self, name: str, *more: str, through: tuple[str, ...] = ()) -> Process:
        command = [*_program("thinwire-node", through), "start", self.invitation, "--name", name]
        command += ["--state-dir", str(self.folder / name), "--threads", "1", *JSON_LOG]
        return self.start(name, *command, *more)

    @property
    def invite_file(self) -> Path:
        """An invite for any number of nodes, which the coordinator writes."""
        return self.folder / "invite"

    @property
    def invitation(self) -> str:
        """The argument that a node is started with: the invite, or the address if no coordinator has written one."""
        return f"@{self.invite_file}" if self.invite_file.exists() else self.address

    @property
    def invite(self) -> Invite:
        return parse_invite(self.invite_file.read_text())

    @property
    def token(self) -> bytes:
        return b"" if self.insecure else self.invite.token

    def channel(self) -> grpc.Channel:
        """A connection to the coordinator, for bare gRPC calls."""
        return open_channel(self.address)

    def counted(self, name: str) -> int:
        """Return the times that a node was counted since the coordinator started."""
        return next((node.counted for node in self.status().nodes if node.name == name), 0)

    def active(self) -> list[str]:
        return sorted(node.name for node in self.status().nodes if node.active)

    def status(self, *, fingerprint: bool = False) -> StatusReply:
        """Ask through a channel that is kept: tests ask twenty times a second, and a new one is most of a call."""
        if self._asked is not None:
            try:
                return self._ask(self._asked, fingerprint)
            except grpc.RpcError as error:
                self.hang_up()
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
        self._asked = self.channel()
        return self._ask(self._asked, fingerprint)

    def _ask(self, channel: grpc.Channel, fingerprint: bool) -> StatusReply:
        request, metadata = StatusRequest(fingerprint=fingerprint), as_organizer(self.state)
        return SwarmStub(channel).Status(request, timeout=10, metadata=metadata)

    def hang_up(self) -> None:
        if self._asked is not None:
            self._asked.close()
            self._asked = None

    def reached(self, step: int) -> None:
        until(lambda: self.status().step >= step, f"step {step}", *self.processes)

    def command(self, name: str, *more: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the coordinator on its state directory."""
        return run(["thinwire-coordinator", name, "--state-dir", str(self.state), *more], self.folder)

    def verify(self) -> str:
        done = self.command("verify")
        assert done.returncode == 0, done.stderr
        return done.stdout


def start_quickly(command: list[str], out: IO[bytes]) -> Started:
    """Start a program with its output and errors in a file. Uses the fork server if that can start it."""
    return fork_server().start(command, out, out) if can_fork(command) else start_installed(command, out)


def _program(name: str, through: tuple[str, ...]) -> list[str]:
    if not through:
        return [name]
    script, *arguments = through
    return ["python", str(Path(__file__).with_name(script)), *arguments]


@contextmanager
def real_swarm(folder: Path) -> Iterator[RealSwarm]:
    swarm = RealSwarm(folder)
    try:
        yield swarm
    finally:
        swarm.hang_up()
        for process in swarm.processes:
            process.tell(signal.SIGKILL)
        for process in swarm.processes:
            process.popen.wait()


def until(
    holds: Callable[[], object], what: str, *processes: Process, progress: Callable[[], object] | None = None
) -> None:
    """Wait until a condition holds. Fails with the logs after PATIENCE_S, or so long after the progress last changed.

    progress: for waits that are as long as the machine is slow."""
    deadline, reached = time.monotonic() + PATIENCE_S, None
    while not holds():
        if progress is not None and (now := progress()) != reached:
            deadline, reached = time.monotonic() + PATIENCE_S, now
        if time.monotonic() > deadline:
            logs = "\n".join(f"--- {process.name}\n{process.tail(80)}" for process in processes)
            raise AssertionError(f"waited in vain: {what}\n{logs}")
        time.sleep(0.05)


def ended(process: Process, progress: Callable[[], object] | None = None) -> int:
    """Wait for the end of a process. Returns its exit status."""
    until(lambda: not process.running, f"{process.name} ends", process, progress=progress)
    return process.popen.wait()


def ends_in_s(process: Process, number: signal.Signals) -> float:
    """Send a signal to a process and return the seconds until it ends.

    Subtracts the longest time in which one of its threads waited for a core, as far as the system reports it, since a
    loaded machine does not mean a slow program."""
    newest: dict[str, float] = {}
    before, began = _without_a_core_s(process), time.monotonic()
    process.tell(number)

    def has_ended() -> bool:
        newest.update(_without_a_core_s(process))
        return not process.running

    until(has_ended, f"{process.name} ends", process)
    without = max((seconds - before.get(thread, 0.0) for thread, seconds in newest.items()), default=0.0)
    return time.monotonic() - began - without


def _without_a_core_s(process: Process) -> dict[str, float]:
    """Seconds that each thread has waited for a core since its start (Linux)."""
    found = {}
    threads: list[Path] = []
    with suppress(OSError):  # the process has ended
        threads += Path(f"/proc/{process.popen.pid}/task").glob("*/schedstat")
    for path in threads:
        with suppress(OSError):  # the thread has ended
            if fields := path.read_text().split():
                found[path.parent.name] = int(fields[1]) / 1e9
    return found


def totals(process: Process) -> tuple[int, int]:
    """The numbers of counted and not counted contributions of a node that has left."""
    (found,) = process.events("node.totals")
    return found["counted"], found["not_counted"]


def last_fingerprint(process: Process) -> tuple[int, int]:
    """The (step, fingerprint) that a node reported when it left."""
    found = left_with(process)
    assert found, process.text()
    return found
