"""Runs the ranks of the baseline, or of the control, each in the namespace of its node."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from bench.wide_area.ddp import PATIENCE, RESULT, RankResult
from bench.wide_area.figures import SystemFigures
from bench.wide_area.hosts import Hosts
from bench.wide_area.line import DEVICE
from bench.wide_area.programs import Programs, module
from deploy.local_swarm.processes import Process, SwarmError

STORE_PORT = 29500


def measure_ddp(hosts: Hosts, samples: int, seconds: float, folder: Path) -> tuple[SystemFigures, float]:
    """Measure DistributedDataParallel: its figures, and the seconds of an exchange."""
    results = _run(hosts, "ddp", samples, seconds, folder, exchange=True)
    # ranks that leave the barrier early wait for the last one, so its time counts
    exchanges_s = [min(times) for times in zip(*(result.exchanges_s for result in results), strict=True)]
    return _sum(results, exchanges=results[0].rounds), statistics.median(exchanges_s)


def measure_control(hosts: Hosts, samples: int, seconds: float, folder: Path) -> SystemFigures:
    """Measure the same passes on all nodes at once, without an exchange."""
    return _sum(_run(hosts, "control", samples, seconds, folder, exchange=False), exchanges=0)


def _run(hosts: Hosts, name: str, samples: int, seconds: float, folder: Path, *, exchange: bool) -> list[RankResult]:
    with Programs(folder) as programs:
        for rank, host in enumerate(hosts.nodes):
            command = [*module("bench.wide_area.ddp"), "--rank", str(rank), "--ranks", str(len(hosts.nodes))]
            command += ["--store", f"{hosts.nodes[0].address}:{STORE_PORT}", "--device", DEVICE]
            command += ["--samples", str(samples), "--seconds", str(seconds), "--line-pid", str(hosts.line_pid)]
            command += ["--exchange"] if exchange else []
            programs.start(f"{name}-{rank}", host.inside(*command))
        programs.wait_until_all_end(name, PATIENCE.total_seconds())
        return [_result(process) for process in programs.all]


def _result(process: Process) -> RankResult:
    for line in process.text().splitlines():
        if line.startswith(RESULT):
            return RankResult(**json.loads(line.removeprefix(RESULT)))
    raise SwarmError(f"{process.name} ended without a result:\n{process.tail(20)}")


def _sum(results: list[RankResult], exchanges: int) -> SystemFigures:
    return SystemFigures(
        nodes=len(results),
        wall_s=max(result.wall_s for result in results),
        tokens=sum(result.tokens for result in results),
        exchanges=exchanges,
        contributions=sum(result.rounds for result in results),
        compute_s=sum(result.compute_s for result in results),
        sent_bytes=sum(result.sent_bytes for result in results),
        received_bytes=sum(result.received_bytes for result in results),
        line_cpu_s=results[0].line_cpu_s,
    )
