"""Measures the cost of metrics for the coordinator: `python -m bench.costs.metrics`.

The same swarm trains twice: first without scrapes, then with one scrape per second, which is 15 times as often as
Prometheus' default. The benchmark compares the coordinator's processor time per round. This difference is smaller than
the variation between runs, so the parts are timed separately too: a scrape, as the mean of many consecutive scrapes
after the run, and the handling of one round's events and messages, in this process.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

from thinwire_coordinator.swarm import events

from bench.wide_area.programs import cpu_s
from deploy.local_swarm.processes import Processes
from thinwire_coordinator.cli.status_client import open_channel
from thinwire_coordinator.hall.counts import Counts
from thinwire_coordinator.hall.observe.metrics import Metrics
from thinwire_proto.wire.rows import Counted
from thinwire_proto.wire.service_pb2 import StatusRequest
from thinwire_proto.wire.service_pb2_grpc import SwarmStub

RUN = '[model]\npreset = "{preset}"\n[schedule]\nsteps = 100000\n'
SCRAPES = 200
BATCHES = 5
"""Batches of scrapes. The cheapest batch is reported, because during the others the coordinator may have measured a
loss or written a snapshot."""
ROUNDS_TIMED = 2000
MESSAGES_A_NODE = 4
"""Messages per node and round: contribution, receipt, announcement, update. Probes are rare and not counted."""
WARMUP_STEPS = 5
EVERY_S = 1.0
MILLI, MICRO = 1e3, 1e6


class Measured:
    """One run: the coordinator's processor time per second, per round and per scrape."""

    def __init__(self, preset: str, nodes: int, seconds: float, scraped: bool) -> None:
        with tempfile.TemporaryDirectory(prefix="thinwire-cost-") as folder:
            self._measure(Path(folder), preset, nodes, seconds, scraped)

    def _measure(self, folder: Path, preset: str, nodes: int, seconds: float, scraped: bool) -> None:
        run_file = folder / "run.toml"
        run_file.write_text(RUN.format(preset=preset))
        with Processes(folder, nodes, metrics=True) as processes:
            address = processes.start_coordinator(run_file)
            processes.start_nodes()
            assert processes.coordinator is not None
            pid, url = processes.coordinator.popen.pid, processes.metrics_urls[0]
            with open_channel(address) as channel:
                stub = SwarmStub(channel)
                began_step = _step_after(stub, WARMUP_STEPS)
                began_s, began_cpu_s = time.monotonic(), cpu_s(pid)
                over = threading.Event()
                if scraped:
                    threading.Thread(target=_scrape, args=(url, over), daemon=True).start()
                time.sleep(seconds)
                over.set()
                spent_s, wall_s = cpu_s(pid) - began_cpu_s, time.monotonic() - began_s
                rounds = _step_after(stub, 0) - began_step
            for node in processes.nodes:
                node.end(8.0)
            self.cpu_share = spent_s / wall_s
            self.round_cpu_s = spent_s / max(1, rounds)
            self.rounds_per_s = rounds / wall_s
            self.scrape_cpu_s = min(_scrape_often(url, pid) for _ in range(BATCHES))


def _step_after(stub: SwarmStub, step: int) -> int:
    while (found := stub.Status(StatusRequest(), timeout=60).step) < step:
        time.sleep(0.1)
    return int(found)


def _scrape_often(url: str, pid: int) -> float:
    """Processor time of one scrape, over a persistent connection, as Prometheus uses it."""
    before_s = cpu_s(pid)
    parts = urlsplit(url)
    with closing(HTTPConnection(parts.netloc, timeout=60)) as connection:
        for _ in range(SCRAPES):
            connection.request("GET", parts.path)
            connection.getresponse().read()
    return (cpu_s(pid) - before_s) / SCRAPES


def _scrape(url: str, over: threading.Event) -> None:
    while not over.wait(EVERY_S):
        _read(url)


def _read(url: str) -> None:
    with urlopen(url, timeout=60) as answer:
        answer.read()


def _round_events(nodes: int) -> list[events.Event]:
    names = [f"{number:032x}" for number in range(nodes)]
    counted = tuple(Counted(name, name.encode(), 8, 8) for name in names)
    told: list[events.Event] = [events.RoundOpened(1, 1, nodes, 1.0, 30.0)]
    for name in names:
        told.append(events.FingerprintCompared(name, equal=True))
        told.append(events.ContributionTaken(name, 1, 9000, 7000, 0.2, 29.8, 0.01))
        told.append(events.UpdateSent(name, 1, 0.01))
    more = {"gather_s": 0.3, "merge_s": 0.01, "seal_s": 0.01}
    told.append(events.RoundSealed(1, 1, 1.0, "time is up", counted, 6144, 2.5, 1e-3, 20_000, 20_000, "votes", **more))
    told.append(events.UpdateApplied(1, 0.02))
    return told


def _timed(work: Callable[[], None]) -> float:
    """Mean processor time of one call, in seconds."""
    began = time.thread_time()
    for _ in range(ROUNDS_TIMED):
        work()
    return (time.thread_time() - began) / ROUNDS_TIMED


def _round_cpu_s(nodes: int) -> float:
    """Processor time for the events and messages of one round, in seconds."""
    metrics, counts = Metrics(), Counts(1_000_000)
    told = _round_events(nodes)

    def watch() -> None:
        for event in told:
            counts.watch(event)
            metrics.watch(event)
        for _ in range(nodes * MESSAGES_A_NODE):
            counts.traffic.sent.add("update", 1000)

    return _timed(watch)


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.costs.metrics", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--preset", default="byte-1m")
    arguments = parser.parse_args()
    unscraped = Measured(arguments.preset, arguments.nodes, arguments.seconds, scraped=False)
    scraped = Measured(arguments.preset, arguments.nodes, arguments.seconds, scraped=True)
    for name, found in (("not scraped", unscraped), ("scraped every second", scraped)):
        print(
            f"{name + ':':22} {found.round_cpu_s * MILLI:6.1f} ms of processor time per round, "
            f"{found.rounds_per_s:.2f} rounds/s, {100 * found.cpu_share:.1f}% of a core"
        )
    round_s = _round_cpu_s(arguments.nodes)
    print(f"one scrape:            {unscraped.scrape_cpu_s * MILLI:6.2f} ms")
    print(f"metrics of a round:    {round_s * MICRO:6.0f} µs with {arguments.nodes} nodes")
    print(f"                       {_round_cpu_s(1000) * MICRO:6.0f} µs with 1,000 nodes")
    for every_s in (1, 15):
        share = (round_s * unscraped.rounds_per_s + unscraped.scrape_cpu_s / every_s) / unscraped.cpu_share
        print(f"share of the coordinator's processor time, scraped every {every_s:2} s: {100 * share:.2f}%")


if __name__ == "__main__":
    main()
