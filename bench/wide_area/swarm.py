"""A swarm over the emulated links, started with the normal commands and observed from outside.

The measured window begins and ends when an update is sealed, so it contains whole rounds. The nodes report their
computation with their contributions, so it is complete at both ends of the window. The start (downloading text and
parameters, and the first rounds) is excluded. The held-out loss is not measured meanwhile, because a real coordinator
does that on its own cores.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.wide_area.figures import SystemFigures
from bench.wide_area.hosts import DeviceBytes, Host, Hosts
from bench.wide_area.programs import POLL_S, Programs, cpu_s, module
from bench.wide_area.programs import START_S as PROGRAM_START_S
from bench.wide_area.watch import Sample
from bench.wide_area.workload import MICRO_BATCH, THREADS, run_toml
from deploy.local_swarm.processes import BIN, Process, SwarmError

PORT = 7700
WARMUP_STEPS = 10
START_S = 600.0
"""Limit for the first rounds. On a slow line with losses, downloading text and parameters takes minutes."""
STALLED_S = 120.0
"""A swarm without an update for so long has failed."""
NEVER = 1_000_000_000


@dataclass(frozen=True)
class Reading:
    """All counters at one end of the window."""

    sample: Sample
    traffic: list[DeviceBytes]
    line_cpu_s: float


def measure_swarm(hosts: Hosts, seconds: float, samples: int, folder: Path) -> SystemFigures:
    """Train with a swarm, and return its figures for the last `seconds`. samples: of a node in a round. Raises
    SwarmError."""
    with Programs(folder) as programs:
        watch = start_swarm(hosts, run_toml(samples), programs, folder)
        sealed = sealed_samples(watch, programs)
        for sample in sealed:
            if sample.step >= WARMUP_STEPS and sample.active == len(hosts.nodes):
                break
        before = _read(sample, hosts)
        for sample in sealed:
            if sample.at_s - before.sample.at_s >= seconds:
                break
        after = _read(sample, hosts)
    if sample.different:
        raise SwarmError(f"replicas differed {sample.different} times; see the logs in {folder}")
    return _difference(before, after)


def start_swarm(hosts: Hosts, run: str, programs: Programs, folder: Path) -> Process:
    """Start coordinator, nodes, and the process that polls the status; returns the latter. run: the run file."""
    (folder / "RUN.toml").write_text(run)
    address = f"{hosts.coordinator.address}:{PORT}"
    command = [str(BIN / "thinwire-coordinator"), "serve", "--run", str(folder / "RUN.toml"), "--listen", address]
    command += ["--state-dir", str(folder / "coordinator"), "--wait-for", str(len(hosts.nodes))]
    command += ["--evaluate-every", str(NEVER), "--invite-file", str(folder / "invite")]
    coordinator = programs.start("coordinator", hosts.coordinator.inside(*command))
    coordinator.wait_until_ready(folder / "coordinator", PROGRAM_START_S)
    for host in hosts.nodes:
        programs.start(host.name, node_command(host, folder))
    watch = (*module("bench.wide_area.watch"), f"@{folder / 'invite'}", str(folder / "coordinator"))
    return programs.start("watch", hosts.coordinator.inside(*watch))


def node_command(host: Host, folder: Path) -> list[str]:
    """The command of a node of `start_swarm`, also to start it again."""
    command = [
        str(BIN / "thinwire-node"),
        "start",
        f"@{folder / 'invite'}",
        "--name",
        host.name,
        "--priority",
        "normal",
    ]
    command += ["--device", "cpu", "--state-dir", str(folder / host.name), "--threads", str(THREADS)]
    return host.inside(*command, "--micro-batch", str(MICRO_BATCH))


def sealed_samples(watch: Process, programs: Programs) -> Iterator[Sample]:
    """Yield the first sample after each update. Raises SwarmError if updates stop."""
    step, patience_s, since_s = 0, START_S, time.monotonic()
    with watch.log.open() as lines:
        line = ""
        while True:
            line += lines.readline()
            if line.endswith("\n"):
                sample, line = parse_sample(line), ""
                if sample.step > step:
                    step, patience_s, since_s = sample.step, STALLED_S, time.monotonic()
                    yield sample
                continue
            programs.check()
            if time.monotonic() - since_s > patience_s:
                tails = "\n".join(f"--- {process.name}\n{process.tail()}" for process in programs.all)
                raise SwarmError(f"no update after step {step} in {patience_s:g} s\n{tails}")
            time.sleep(POLL_S)


def parse_sample(line: str) -> Sample:
    """A line of `bench.wide_area.watch`. Raises SwarmError if it is another."""
    try:
        return Sample(**json.loads(line))
    except ValueError:
        raise SwarmError(f"the coordinator's status is not available: {line}") from None


def _read(sample: Sample, hosts: Hosts) -> Reading:
    return Reading(sample, [host.traffic() for host in hosts.nodes], cpu_s(hosts.line_pid))


def _difference(before: Reading, after: Reading) -> SystemFigures:
    first, last = before.sample, after.sample
    traffic = list(zip(before.traffic, after.traffic, strict=True))
    return SystemFigures(
        nodes=len(traffic),
        wall_s=last.at_s - first.at_s,
        tokens=last.tokens - first.tokens,
        exchanges=last.step - first.step,
        contributions=last.counted - first.counted,
        compute_s=last.compute_s - first.compute_s,
        sent_bytes=sum(then.sent_bytes - now.sent_bytes for now, then in traffic),
        received_bytes=sum(then.received_bytes - now.received_bytes for now, then in traffic),
        line_cpu_s=after.line_cpu_s - before.line_cpu_s,
    )
