"""Starts a system on the emulated hosts, and reads how it goes: one class for scripts, one for thinwire."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from bench.peers.figures import Batch, came_back_equal, read_batches
from bench.peers.scripts.trainee import WARMUP_BATCHES, save
from bench.peers.systems import System
from bench.wide_area.hosts import Host, Hosts
from bench.wide_area.programs import POLL_S, ROOT, Programs
from bench.wide_area.swarm import node_command, parse_sample, start_swarm
from deploy.local_swarm.processes import BIN, Process, SwarmError
from thinwire_coordinator.hall.ledger.state_directory import open_state
from thinwire_coordinator.kinds import kind_of

NODE_TOKENS_S = 3500
"""Tokens a second of a node on two fifths of a core, from which `init` plans the run."""

HELPER_S = 60.0
SUBMIT_AFTER_S = 15.0


@dataclass(frozen=True)
class Place:
    """Where a system runs. folder: of its logs and parameters. python: of its environment."""

    hosts: Hosts
    programs: Programs
    folder: Path
    python: Path


class ScriptRun:
    """A system in training whose nodes run a script."""

    def __init__(self, system: System, place: Place) -> None:
        self._system, self._place, self._join = system, place, ""

    def start(self) -> None:
        """Start all its programs. Raises SwarmError."""
        place, system = self._place, self._system
        if system.helper:
            helper = place.programs.start("helper", self._on_coordinator(system.helper))
            self._join = self._printed(helper, system.join)
        for rank in range(len(place.hosts.nodes)):
            self._start(rank)
        if system.submit:
            (place.folder / "config.toml").write_text(system.config.format(coordinator=place.hosts.coordinator.address))
            wait(SUBMIT_AFTER_S, place.programs)
            place.programs.start("submit", self._on_coordinator(system.submit))

    def start_again(self, rank: int) -> None:
        """Start a node again that was killed."""
        self._start(rank, "--again")

    def _start(self, rank: int, *again: str) -> None:
        place, host, system = self._place, self._place.hosts.nodes[rank], self._system
        options = ["--rank", str(rank), "--addresses", *(node.address for node in place.hosts.nodes)]
        options += ["--join", self._join, "--coordinator", place.hosts.coordinator.address]
        options += ["--folder", str(place.folder), *again]
        # its own hostname, which some systems give to the others as its address
        named = ["/usr/bin/unshare", "--uts", "/bin/sh", "-c", 'hostname "$0" && exec "$@"', host.address]
        script = [str(place.python), "-m", f"bench.peers.scripts.{system.script}", *options]
        # Flower takes the options as words of one string, in which an empty one would vanish
        node = self._filled(system.node, " ".join(option or "-" for option in options)) if system.node else script
        place.programs.start(f"{host.name}{''.join(again)}", host.inside(*self._environment(), *named, *node))

    def _on_coordinator(self, command: Sequence[str]) -> list[str]:
        return self._place.hosts.coordinator.inside(*self._environment(), *self._filled(command))

    def _environment(self) -> list[str]:
        path = os.pathsep.join([str(ROOT), str(ROOT / "proto")])
        programs = os.pathsep.join([str(self._place.python.parent), os.environ["PATH"]])
        own = [f"PYTHONPATH={path}", f"PATH={programs}", f"FLWR_HOME={self._place.folder}", "FLWR_TELEMETRY_ENABLED=0"]
        return ["/usr/bin/env", *own]

    def _printed(self, helper: Process, pattern: str) -> str:
        """What of the helper's log matches the pattern, when it is there; nothing without a pattern."""
        until_s = time.monotonic() + HELPER_S
        while not (found := re.search(pattern, helper.text())):
            if time.monotonic() > until_s:
                raise SwarmError(f"the helper did not say how to join it:\n{helper.tail()}")
            wait(POLL_S, self._place.programs)
        return found[0]

    def _filled(self, command: Sequence[str], options: str = "") -> list[str]:
        values = {"bin": str(self._place.python.parent), "coordinator": self._place.hosts.coordinator.address}
        return [word.format(**values, options=options) for word in command]

    def batches(self) -> list[Batch]:
        """The batches that the nodes have finished so far."""
        logs = (self._place.folder / f"{rank}.jsonl" for rank in range(len(self._place.hosts.nodes)))
        return [batch for log in logs if log.exists() for batch in read_batches(log.read_text().splitlines())]

    def came_back_equal(self, rank: int, restarted_s: float) -> bool | None:
        return came_back_equal(self.batches(), rank, restarted_s)

    def hand_over(self, times: Sequence[float]) -> None:
        """Write the parameters of these times, after the end. The scripts do so while they run."""


class ThinwireRun:
    """A swarm of thinwire, started with its normal commands. A batch is what a node contributed to one update."""

    def __init__(self, system: System, place: Place) -> None:
        self._system, self._place = system, place
        self._watch: Process | None = None

    def start(self) -> None:
        place = self._place
        run_file = place.folder / "run.toml"
        command = [str(BIN / "thinwire-coordinator"), "init", "--model", "byte-1m", "--nodes"]
        command += [str(len(place.hosts.nodes)), "--up", "10", "--down", "10", "--tokens-per-second"]
        command += [str(NODE_TOKENS_S), "--growth", "1", "--out", str(run_file), *self._system.init]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            raise SwarmError(f"init: {made.stderr.strip()}")
        self._watch = start_swarm(place.hosts, constant_rate(run_file.read_text()), place.programs, place.folder)

    def start_again(self, rank: int) -> None:
        host = self._place.hosts.nodes[rank]
        self._place.programs.start(f"{host.name}--again", node_command(host, self._place.folder))

    def batches(self) -> list[Batch]:
        assert self._watch is not None
        return batches_of_swarm(self._watch.text().splitlines())

    def came_back_equal(self, rank: int, restarted_s: float) -> bool | None:
        """Every contribution has a fingerprint of the replica, which the coordinator compares with its own."""
        assert self._watch is not None
        if not any(batch.node == rank and batch.at_s > restarted_s for batch in self.batches()):
            return None
        return parse_sample(self._watch.text().splitlines()[-2]).different == 0

    def hand_over(self, times: Sequence[float]) -> None:
        batches = self.batches()
        with closing(open_state(self._place.folder / "coordinator", read_only=True)) as state:
            for at_s in times:
                step = max((batch.version or 0 for batch in batches if batch.at_s <= at_s), default=0)
                tensors = kind_of(state.contract).model_at(state, step).tensors
                save({name: tensor.float() for name, tensor in tensors.items()}, self._place.folder, 0, at_s)


def constant_rate(run: str) -> str:
    """A run file with the schedule that all systems have: a short warm-up, then a constant rate."""
    run, warmups = re.subn(r"(?m)^warmup_steps = \d+", f"warmup_steps = {WARMUP_BATCHES}", run)
    run, floors = re.subn(r"(?m)^floor = [\d.]+", "floor = 1.0", run)
    if (warmups, floors) != (1, 1):
        raise SwarmError("the run file of `init` has no warmup_steps or no floor; change bench/peers/runs.py with it")
    return run


def batches_of_swarm(lines: Sequence[str]) -> list[Batch]:
    """The batches that a log of `bench.wide_area.watch` tells of. Its last line may not be complete, and is skipped."""
    found: list[Batch] = []
    samples = [parse_sample(line) for line in lines[:-1]]
    for before, after in pairwise(samples):
        added = {name: count - before.counted_by.get(name, 0) for name, count in after.counted_by.items()}
        total = sum(count for count in added.values() if count > 0)
        for name, count in added.items():
            if count > 0:
                tokens = round((after.tokens - before.tokens) * count / total)
                found.append(Batch(after.at_s, int(name.rpartition("-")[2]) - 1, tokens, after.step))
    return found


def kill_everything(host: Host) -> None:
    """Kill every process of a host at once, as when its power fails."""
    for pid in host.pids():
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            continue


def wait(seconds: float, programs: Programs) -> None:
    """Wait. Raises SwarmError if a program fails meanwhile."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        programs.check()
        time.sleep(POLL_S)
