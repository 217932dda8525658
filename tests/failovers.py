"""`make failovers`: the coordinator's machine is lost again and again, with its disk, while real processes train.

Steps are sealed after the standby. Each time, the coordinator is killed with SIGKILL at a random moment, its state
directory is deleted, and its standby is promoted. A new standby is then made from a backup. After each, these promises
must hold:

* No step is missing that a node or the status has seen, and rows that both machines had are equal.
* The ledger of the promoted machine verifies, and the swarm makes progress there.

At the end, the logs of all processes are checked as by `make chaos`: no replica differed, and no node had to give up
its replica, so none was ever sent a row that was lost.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from chaos import END_S, RUN, Failed, check_logs
from deploy.local_swarm.ports import free_addresses
from deploy.local_swarm.processes import JSON_LOG, Process, left_with
from support.real import PATIENCE_S, RealSwarm, real_swarm
from thinwire_coordinator.hall.ledger.backup import LEDGER, back_up, restore
from thinwire_coordinator.hall.standby.standing import promote
from thinwire_coordinator.verify import verify
from thinwire_proto.errors import LedgerError

NODES = 3
OPTIONS = ("--seal-after-standby", "--evaluate-every", "1000000000", "--http", "off")
BETWEEN_S = (0.0, 2.0)
"""From the moment that all is well to the next loss. Rounds take a second, so the loss comes anywhere in one."""


@dataclass
class Machine:
    """A coordinator or a standby, and where it is."""

    state: Path
    address: str
    process: Process


@dataclass
class Failovers:
    swarm: RealSwarm
    random: random.Random
    nodes: list[Process] = field(default_factory=list)
    made: int = 0
    seen: int = 0
    """The newest step that a node or the status has had."""
    rounds_in_doubt: int = 0
    """Rows that the lost machine had, and that its standby did not have: they were never published."""
    away_s: list[float] = field(default_factory=list)
    """From the kill to the next step."""

    def begin(self) -> None:
        process = self.swarm.coordinator(RUN, *OPTIONS)
        self.leader = Machine(self.swarm.state, self.swarm.address, process)
        self.standby = self.new_standby()
        self.nodes = [self.swarm.node(f"node-{number}") for number in range(NODES)]
        self.until(lambda: self.step() >= 2, "two steps")

    def new_standby(self) -> Machine:
        """A standby on a new machine, from a backup of the coordinator."""
        self.made += 1
        copy, state = (self.swarm.folder / f"{name}-{self.made}" for name in ("copy", "machine"))
        back_up(self.leader.state, str(copy))
        restore(str(copy), state)
        shutil.rmtree(copy)
        address = free_addresses(1)[0]
        command = ["thinwire-coordinator", "serve", "--state-dir", str(state), "--listen", address]
        command += ["--follow", self.leader.address, *OPTIONS, *JSON_LOG]
        return Machine(state, address, self.swarm.start(f"machine-{self.made}", *command))

    def step(self) -> int:
        """The newest step of the status; the one before if the coordinator does not answer."""
        with suppress(grpc.RpcError):
            self.seen = max(self.seen, self.swarm.status().step)
        for head in self.swarm.folder.glob("node-*/head.json"):
            with suppress(ValueError, OSError):
                self.seen = max(self.seen, int(json.loads(head.read_text())["step"]))
        return self.seen

    def until(self, holds: object, what: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while not holds():  # type: ignore[operator]
            if time.monotonic() > end:
                raise Failed(f"after {self.made} standbys, waited in vain: {what}; logs in {self.swarm.folder}")
            for process in (*self.nodes, self.leader.process, self.standby.process):
                if not process.running:
                    raise Failed(f"{process.name} ended with {process.popen.returncode}:\n{process.tail(20)}")
            time.sleep(0.05)

    def fail_over(self) -> None:
        """Lose the coordinator's machine, and promote the standby."""
        before = self.step()
        self.until(lambda: self.step() >= before + 2, "two more steps with a standby")
        time.sleep(self.random.uniform(*BETWEEN_S))
        self.step()
        self.leader.process.tell(signal.SIGKILL)
        self.leader.process.popen.wait()
        killed_at, lost = time.monotonic(), rows_of(self.leader.state)
        shutil.rmtree(self.leader.state)
        promote(self.standby.state)
        self.leader = promoted = self.standby
        self.swarm.hang_up()
        self.swarm.state, self.swarm.address = promoted.state, promoted.address
        promoted.process.wait_until_ready(promoted.state, PATIENCE_S)
        self.check(lost, rows_of(promoted.state))
        self.standby = self.new_standby()
        self.until(lambda: self.swarm.status().step > len(lost), "a step after the promotion")
        self.away_s.append(time.monotonic() - killed_at)
        try:
            verify(promoted.state, lambda said: None)
        except LedgerError as error:
            raise Failed(f"the ledger of {promoted.state} does not verify: {error}") from None

    def check(self, lost: list[bytes], kept: list[bytes]) -> None:
        if len(kept) < self.seen:
            raise Failed(f"step {self.seen} was seen, but the promoted ledger has {len(kept)} rows")
        if len(lost) - len(kept) not in (0, 1) or kept != lost[: len(kept)]:
            raise Failed(f"the lost machine had {len(lost)} rows and the promoted one {len(kept)}, or they differ")
        self.rounds_in_doubt += len(lost) - len(kept)

    def finish(self) -> None:
        """Let all nodes leave, then check the logs."""
        for node in self.nodes:
            node.tell(signal.SIGTERM)
        for node in self.nodes:
            node.popen.wait(END_S)
        self.leader.process.end(END_S)
        self.standby.process.end(END_S)
        check_logs(self.swarm.folder)
        left = [found for node in self.nodes if (found := left_with(node))]
        if len(left) < NODES or len({fingerprint for step, fingerprint in left if step == left[0][0]}) != 1:
            raise Failed(f"the nodes left with different replicas: {left}")


def rows_of(state: Path) -> list[bytes]:
    """The hashes of all rows in a ledger."""
    with closing(sqlite3.connect(state / LEDGER)) as db:
        return [bytes(found) for (found,) in db.execute("SELECT hash FROM rows ORDER BY step")]


def run(swarm: RealSwarm, seed: int, count: int) -> Failovers:
    made = Failovers(swarm, random.Random(seed))
    made.begin()
    for number in range(1, count + 1):
        made.fail_over()
        print(f"{number}: step {made.seen}, {made.away_s[-1]:.1f} s without a step", flush=True)
    made.finish()
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m failovers", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=50)
    given = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="thinwire-failovers-"))
    print(f"seed {given.seed}, {given.count} fail-overs, logs in {folder}", flush=True)
    try:
        with real_swarm(folder) as swarm:
            made = run(swarm, given.seed, given.count)
    except Failed as error:
        sys.exit(f"seed {given.seed}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    away = sorted(made.away_s)
    doubt = f"{made.rounds_in_doubt} rows were on their way and never published"
    print(f"{len(away)} fail-overs, {made.seen} steps; no step that was seen is missing; {doubt}")
    print("all ledgers verify, and no node gave up its replica")
    print(f"without a step: median {away[len(away) // 2]:.1f} s, longest {away[-1]:.1f} s")


if __name__ == "__main__":
    main()
