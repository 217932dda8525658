"""A coordinator and three honest nodes, real processes on loopback, and the processes of the attacks."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path

import grpc

from abuse.attack import ATTACK_LOG
from deploy.local_swarm.processes import Process
from support.real import RealSwarm, real_swarm, until
from thinwire_proto.wire.service_pb2 import StatusReply

NODES = ("honest-a", "honest-b", "honest-c")
CALM_STEP = 5
"""Steps until the beat is steady."""
PEAK = "VmHWM:"
_CORES = sorted(os.sched_getaffinity(0))
CORES_OF_NODES, CORES_OF_OTHERS = _CORES[: max(1, len(_CORES) // 2)], _CORES[len(_CORES) // 2 :]
"""Honest nodes have other machines than the coordinator, so they get cores of their own, if there are two."""


def _has_begun_or_ended(attack: Process) -> bool:
    return ATTACK_LOG in attack.text() or not attack.running


class SwarmUnderAttack:
    """bound_bytes: the coordinator's bound on its memory, as it printed it."""

    def __init__(self, swarm: RealSwarm, coordinator: Process) -> None:
        self.swarm = swarm
        self.coordinator = coordinator
        self._page = str(swarm.ready["page"]).removeprefix("https://").replace("0.0.0.0", "127.0.0.1")
        self.bound_bytes = int(coordinator.events("coordinator.memory_bound")[0]["memory_bytes"])

    def begin(self, *attacks: str) -> list[Process]:
        """Start attacks beside each other, and wait until all have begun."""
        own = self.swarm.address, self.swarm.token.hex(), self._page
        begun = [self.swarm.start("attack", "python", "-m", "abuse.attack", attack, *own) for attack in attacks]
        for attack, process in zip(attacks, begun, strict=True):
            until(partial(_has_begun_or_ended, process), f"{attack} begins", process)
            assert process.running, process.text()
            _pin(process, CORES_OF_OTHERS)
        return begun

    def end(self, attack: Process) -> str:
        """End an attack. Returns what it says that it has sent."""
        attack.tell(signal.SIGTERM)
        until(lambda: not attack.running, "the attack ends", attack)
        assert attack.popen.wait() == 0, attack.text()
        return attack.text().rpartition(ATTACK_LOG)[2].strip()

    def rounds(self) -> int:
        """Rounds that were sealed, by the log: calls of this address may be refused while it attacks."""
        return len(self.coordinator.events("coordinator.round_sealed"))

    def counted(self) -> dict[str, int]:
        """Contributions of each honest node that were counted."""
        found: list[StatusReply] = []

        def ask() -> bool:
            with suppress(grpc.RpcError):  # refused, because attacks come from the same address
                found.append(self.swarm.status())
            return bool(found)

        until(ask, "the coordinator tells its status", self.coordinator)
        return {node.name: node.counted for node in found[0].nodes if node.name in NODES}

    def sealed_at(self) -> list[float]:
        """The time at which each round was sealed, in Unix seconds."""
        told = self.coordinator.events("coordinator.round_sealed")
        return [datetime.fromisoformat(entry["time"]).timestamp() for entry in told]

    def peak_bytes(self) -> int:
        """The coordinator's largest resident memory since its start, or since `forget_peak`."""
        status = Path(f"/proc/{self.coordinator.popen.pid}/status").read_text()
        return 1024 * int(status.partition(PEAK)[2].split()[0])

    def forget_peak(self) -> None:
        Path(f"/proc/{self.coordinator.popen.pid}/clear_refs").write_text("5")


def _pin(process: Process, cores: list[int]) -> None:
    """Let all threads of a process, and those that they start, run on these cores only."""
    for thread in Path(f"/proc/{process.popen.pid}/task").iterdir():
        with suppress(ProcessLookupError):  # it has just ended
            os.sched_setaffinity(int(thread.name), cores)


@contextmanager
def _debug_log() -> Iterator[None]:
    """Programs that are started meanwhile log at level debug, where each sealed round is told."""
    names = ("THINWIRE_COORDINATOR_LOG_LEVEL", "THINWIRE_NODE_LOG_LEVEL")
    os.environ |= dict.fromkeys(names, "debug")
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]


@contextmanager
def attacked_swarm(folder: Path, run: str) -> Iterator[SwarmUnderAttack]:
    """Start the swarm of a run, whose page has HTTPS, and wait until its beat is steady."""
    with real_swarm(folder) as swarm:
        with _debug_log():
            coordinator = swarm.coordinator(run, "--wait-for", str(len(NODES)), "--http", "0.0.0.0:0")
        nodes = [swarm.node(name) for name in NODES]
        swarm.reached(CALM_STEP)
        _pin(coordinator, CORES_OF_OTHERS)
        for node in nodes:
            _pin(node, CORES_OF_NODES)
        yield SwarmUnderAttack(swarm, coordinator)
