"""`make chaos`: kills, stops and starts real processes at random, while the swarm must make progress.

Every 0.5 to 2 seconds, one action hits one process: a node is started, killed with SIGKILL, told to leave, stopped
(SIGSTOP) or resumed, or the coordinator is killed and restarted. The seed determines the actions and their targets; the
exact timing depends on the machine. At the end all nodes leave, and these promises must hold:

* The swarm made progress: it never went STANDSTILL_S without a new step while a node could train.
* No comparison found a replica that differs, and nodes that left at the same step reported the same fingerprint.
  Counts end with the coordinator's process, so the logs of all processes are checked too.
* The ledger verifies, and each contribution is in at most one update.
* Every process ended normally or by a signal from this program.
"""

from __future__ import annotations

import argparse
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deploy.local_swarm.daemon_log import entry_of
from deploy.local_swarm.processes import Process, SwarmError, left_with
from support.real import RealSwarm, real_swarm, run_text
from thinwire_coordinator.verify import verify
from thinwire_proto.errors import LedgerError

NODES_MAX = 10
NODES_LEAST = 2
ACTION_S = (0.5, 2.0)
STANDSTILL_S = 30.0
"""Longer than a coordinator and a node take to start while all other processes start too."""
END_S = 60.0
"""All nodes leave at once."""
ACTIONS = {"start": 6, "kill": 4, "leave": 2, "stop": 2, "wake": 3, "kill the coordinator": 1}
"""Actions with their weights."""

RUN = run_text(10_000_000, samples=64, length_ms=1000, rounds='pace = "clock"\nbase_age_max = 1')

TROUBLE = ("coordinator.replica_differs", "node.resync")
"""Events that no process may log: the coordinator finds a replica that differs, or a node discards its replica for any
reason. Also forbidden: a receipt that says that a replica differs, and any entry of level error."""
CRASH = re.compile(r"Traceback|Segmentation|Fatal Python error")
"""Output of the interpreter itself, which is not JSON."""
SHOWN_LINES = 20


class Failed(Exception):
    """A promise did not hold."""


def tells_of_trouble(line: str) -> bool:
    entry = entry_of(line)
    if entry is None:
        return bool(CRASH.search(line))
    differs = entry.get("event") in TROUBLE or entry.get("replica_differs")
    return bool(differs or entry.get("level") in ("error", "critical") or "exception" in entry)


def check_logs(folder: Path) -> None:
    """Raise Failed with the file, the line and the lines after it, if a log reports trouble."""
    for path in sorted(folder.glob("*.log")):
        lines = path.read_text(errors="replace").splitlines()
        for number, line in enumerate(lines, 1):
            if tells_of_trouble(line):
                excerpt = "\n".join(lines[number - 1 : number - 1 + SHOWN_LINES])
                raise Failed(f"{path}:{number}: {excerpt}")


@dataclass
class Victim:
    name: str
    process: Process | None = None
    stopped: bool = False

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.running


@dataclass
class Chaos:
    swarm: RealSwarm
    random: random.Random
    victims: list[Victim] = field(default_factory=lambda: [Victim(f"node-{n}") for n in range(1, NODES_MAX + 1)])
    done: dict[str, int] = field(default_factory=dict)
    best_step: int = 0
    moved_at: float = field(default_factory=time.monotonic)
    slowest_s: float = 0.0
    lives: int = 0

    def start_coordinator(self) -> None:
        self.lives += 1
        try:
            self.coordinator = self.swarm.coordinator(RUN, "--evaluate-every", "1000000000")
        except SwarmError as error:
            raise Failed(str(error)) from None

    def start(self, victim: Victim) -> None:
        victim.process, victim.stopped = self.swarm.node(victim.name), False

    def act(self) -> None:
        """Apply one random action to one process."""
        running = [victim for victim in self.victims if victim.runs]
        awake = [victim for victim in running if not victim.stopped]
        choices = {
            "start": [victim for victim in self.victims if not victim.runs],
            "kill": running if len(awake) > NODES_LEAST else [],
            "leave": awake if len(awake) > NODES_LEAST else [],
            "stop": awake if len(awake) > NODES_LEAST else [],
            "wake": [victim for victim in running if victim.stopped],
            "kill the coordinator": self.victims,
        }
        possible = [action for action in ACTIONS if choices[action]]
        action = self.random.choices(possible, [ACTIONS[action] for action in possible])[0]
        victim = self.random.choice(choices[action])
        self.done[action] = self.done.get(action, 0) + 1
        if action == "start":
            self.start(victim)
        elif action == "kill the coordinator":
            self.coordinator.tell(signal.SIGKILL)
            self.coordinator.popen.wait()
            self.start_coordinator()
            self.moved_at = time.monotonic()
        else:
            assert victim.process is not None
            numbers = {"kill": signal.SIGKILL, "leave": signal.SIGTERM, "stop": signal.SIGSTOP, "wake": signal.SIGCONT}
            victim.process.tell(numbers[action])
            victim.stopped = action == "stop"

    def look(self) -> None:
        """Raise Failed if there is no progress, a replica differs, or a node has ended unexpectedly."""
        status = self.swarm.status()
        if status.fingerprints_different:
            raise Failed(f"{status.fingerprints_different} replicas differed: see {self.swarm.folder}")
        now = time.monotonic()
        if status.step > self.best_step or not any(node.active for node in status.nodes):
            self.best_step = max(status.step, self.best_step)
            self.moved_at = now
        if status.step < self.best_step:
            raise Failed(f"step {self.best_step} was sealed, but the ledger ends at step {status.step}")
        self.slowest_s = max(self.slowest_s, now - self.moved_at)
        if now - self.moved_at > STANDSTILL_S:
            raise Failed(f"no step after {self.best_step} for {STANDSTILL_S:.0f} s")
        for victim in self.victims:
            process = victim.process
            # a node that gets SIGTERM before it has installed its handler ends by the signal
            fine = (0, -signal.SIGKILL, -signal.SIGTERM)
            if process is not None and not process.running and process.popen.returncode not in fine:
                raise Failed(f"{victim.name} ended with {process.popen.returncode}:\n{process.tail(20)}")

    def finish(self) -> None:
        """Let all nodes leave, then check the logs and the ledger."""
        for victim in self.victims:
            if victim.process is not None:
                victim.process.tell(signal.SIGCONT)
                victim.process.tell(signal.SIGTERM)
        for victim in self.victims:
            if victim.process is not None:
                victim.process.popen.wait(END_S)
        self.look()
        self.coordinator.end(END_S)
        check_logs(self.swarm.folder)
        try:
            verify(self.swarm.state, lambda said: None)
        except LedgerError as error:
            raise Failed(f"the ledger does not verify: {error}") from None
        if not any(process.events("node.joined") for process in self.swarm.processes):
            raise Failed("no log has the event node.joined, so the check of the logs means nothing")
        left: dict[int, int] = {}
        for process in self.swarm.processes:
            if found := left_with(process):
                step, fingerprint = found
                if left.setdefault(step, fingerprint) != fingerprint:
                    raise Failed(f"{process.name} left at step {step} with a different fingerprint than another node")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=10.0)
    given = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="thinwire-chaos-"))
    print(f"seed {given.seed}, {given.minutes:g} minutes, logs in {folder}", flush=True)
    try:
        with real_swarm(folder) as swarm:
            chaos = Chaos(swarm, random.Random(given.seed))
            run(chaos, given.minutes * 60)
    except Failed as error:
        sys.exit(f"seed {given.seed}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    actions = ", ".join(f"{action} {count}" for action, count in sorted(chaos.done.items()))
    print(f"{chaos.best_step} steps, {chaos.lives} coordinator processes; {actions}")
    print(f"longest time without a step: {chaos.slowest_s:.1f} s; all replicas were equal, and the ledger verifies")


def run(chaos: Chaos, seconds: float) -> None:
    chaos.start_coordinator()
    for victim in chaos.victims[:3]:
        chaos.start(victim)
    chaos.moved_at = time.monotonic()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(chaos.random.uniform(*ACTION_S))
        chaos.act()
        chaos.look()
    chaos.finish()


if __name__ == "__main__":
    main()
