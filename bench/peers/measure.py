"""One measurement of one system: a window of training, then a killed node."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from bench.peers.environments import NotInstalledError, check_imports, last_error, python_of, versions_of
from bench.peers.evaluator import Evaluator
from bench.peers.figures import CurvePoint, Outcome, back_after_s, longest_gap_s, tokens_until
from bench.peers.runs import Place, ScriptRun, ThinwireRun, kill_everything, wait
from bench.peers.scripts.trainee import SAVE_EVERY_S
from bench.peers.systems import System
from bench.wide_area.cores import groups_for
from bench.wide_area.hosts import Hosts, LinkSpec, hosts_behind
from bench.wide_area.needs import EmulationSupport
from bench.wide_area.programs import END_S, POLL_S, Programs
from bench.wide_area.workload import NODES, SEED
from deploy.local_swarm.processes import SwarmError

LINK = LinkSpec(10, 100, 0)
START_S = 240.0
"""Limit for the first batch of every node."""
RESTART_AFTER_S = 10.0


@dataclass(frozen=True)
class Plan:
    """Seconds of a measurement: the window before the kill, and all that is watched after it."""

    window_s: float
    after_s: float
    quick: bool


def measure(system: System, plan: Plan, machine: EmulationSupport, environments: Path, folder: Path) -> Outcome:
    """Measure a system, installing it first if need be. A system that fails has an outcome with its error."""
    cores = f"{os.cpu_count()} cores ({platform.machine()}, Linux {platform.release().split('-')[0]})"
    link = f"{LINK.rate_mbit:g} Mbit/s, {LINK.round_trip_ms:g} ms"
    outcome = Outcome(system.name, datetime.now().strftime("%Y-%m-%d %H:%M"), cores, link, plan.quick, nodes=NODES)
    try:
        python = python_of(system, environments)
        outcome = replace(outcome, versions=versions_of(system, python))
        check_imports(system, python)
        return _train(system, python, plan, machine, folder, outcome)
    except (NotInstalledError, SwarmError) as error:
        return replace(outcome, error=last_error(str(error)), load=os.getloadavg()[0])


def _train(
    system: System, python: Path, plan: Plan, machine: EmulationSupport, folder: Path, outcome: Outcome
) -> Outcome:
    lines = (LINK, NODES, SEED, folder)
    with (
        groups_for(machine.controller, NODES) as groups,
        hosts_behind(*lines, groups=groups) as hosts,
        _empty_afterwards(hosts),
        Programs(folder) as programs,
    ):
        place = Place(hosts, programs, folder, python)
        run = ScriptRun(system, place) if system.script else ThinwireRun(system, place)
        run.start()
        _wait_for_all(run, programs)
        start_s, before = time.monotonic(), [host.traffic() for host in hosts.nodes]
        wait(plan.window_s, programs)
        killed_s, after, load = time.monotonic(), [host.traffic() for host in hosts.nodes], os.getloadavg()[0]
        victim = NODES - 1
        kill_everything(hosts.nodes[victim])
        time.sleep(RESTART_AFTER_S)
        restarted_s = time.monotonic()
        run.start_again(victim)
        time.sleep(plan.after_s - RESTART_AFTER_S)
        end_s, batches = time.monotonic(), run.batches()
        survivors = [batch for batch in batches if batch.node != victim]
        names = [host.name for host in hosts.nodes if host is not hosts.nodes[victim]]
        lost = [process for process in programs.all if process.name in names and not process.running]
        outcome = replace(
            outcome,
            seconds=killed_s - start_s,
            tokens=tokens_until(batches, killed_s) - tokens_until(batches, start_s),
            sent_bytes=sum(b.sent_bytes - a.sent_bytes for a, b in zip(before, after, strict=True)) / NODES,
            received_bytes=sum(b.received_bytes - a.received_bytes for a, b in zip(before, after, strict=True)) / NODES,
            gap_before_s=longest_gap_s(batches, start_s, killed_s),
            still_s=longest_gap_s(survivors, killed_s, end_s),
            after_s=end_s - killed_s,
            ended=last_error(lost[0].text()) if lost else "",
            back_s=back_after_s(batches, victim, restarted_s),
            equal=run.came_back_equal(victim, restarted_s) if system.equal else None,
            load=load,
        )
    count = int((end_s - start_s) // SAVE_EVERY_S)
    run.hand_over([*(start_s + number * SAVE_EVERY_S for number in range(count + 1)), end_s])
    evaluator = Evaluator()
    curve: list[CurvePoint] = [
        (at_s - start_s, tokens_until(batches, at_s), evaluator.loss(file))
        for at_s, file in _saved(folder, 0)
        if at_s <= killed_s
    ]
    last = [_saved(folder, rank)[-1:] for rank in range(NODES)]
    losses = [evaluator.loss(file) for found in last for _, file in found]
    return replace(outcome, parameters=evaluator.parameters, curve=curve, last_losses=losses)


def _wait_for_all(run: ScriptRun | ThinwireRun, programs: Programs) -> None:
    """Wait until every node has finished a batch. Raises SwarmError."""
    until_s = time.monotonic() + START_S
    while {batch.node for batch in run.batches()} != set(range(NODES)):
        if time.monotonic() > until_s:
            tails = "\n".join(f"--- {process.name}\n{process.tail()}" for process in programs.all)
            raise SwarmError(f"not every node finished a batch within {START_S:g} s\n{tails}")
        wait(1.0, programs)


def _saved(folder: Path, rank: int) -> list[tuple[float, Path]]:
    """The parameters of a node, by time."""
    found = folder.glob(f"{rank}-*.safetensors")
    return sorted((float(file.stem.partition("-")[2]), file) for file in found)


@contextmanager
def _empty_afterwards(hosts: Hosts) -> Iterator[None]:
    """Kill what systems leave behind, and wait for its end: a control group with processes cannot be removed."""
    try:
        yield
    finally:
        everybody, until_s = (hosts.coordinator, *hosts.nodes), time.monotonic() + END_S
        while any(host.pids() for host in everybody) and time.monotonic() < until_s:
            for host in everybody:
                kill_everything(host)
            time.sleep(POLL_S)
