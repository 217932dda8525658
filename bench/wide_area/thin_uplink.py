"""A volunteer whose line sends 64 kbit/s with jitter: in how many of its rounds is it counted?

`make bench-wan WAN=--thin-uplink`. Two nodes train on a clock. One is behind 10 Mbit/s; the other receives as fast, and
sends 64 kbit/s, where each packet takes up to a second longer. A round is twice as long as a contribution needs on that
line.
"""

from __future__ import annotations

import argparse
import datetime
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bench.wide_area.hosts import QUEUE_BYTES_MIN, LinkSpec, hosts_behind
from bench.wide_area.line import LineQuality
from bench.wide_area.needs import check_emulation
from bench.wide_area.programs import Programs
from bench.wide_area.swarm import sealed_samples, start_swarm
from bench.wide_area.workload import PRESET, SEED
from deploy.local_swarm.processes import ENDING, SwarmError

LINK = LinkSpec(10, 100, 0.0)
UP_MBIT, JITTER_MS = 0.064, 1000.0
NODES = 2
ROUND_MS = 6000
WARMUP_STEPS = 10
COUNTED_WANTED = 0.95
RUN = f"""
[model]
preset = "{PRESET}"

[schedule]
steps = 1000000
warmup_steps = 10

[round]
pace = "clock"
length_ms = {ROUND_MS}
samples = 64

[data]
seed = {SEED}
"""


@dataclass(frozen=True)
class ThinFigures:
    """rounds: sealed in the window. counted: how often the node behind the thin uplink was. sent_bytes: by it, as the
    kernel counted them."""

    rounds: int
    counted: int
    sent_bytes: int

    @property
    def share(self) -> float:
        return self.counted / self.rounds


def measure(rounds: int, loss: float, folder: Path) -> ThinFigures:
    """Train for so many rounds after a warm-up. Raises SwarmError."""
    link = LinkSpec(LINK.rate_mbit, LINK.round_trip_ms, loss)
    thin = LineQuality(UP_MBIT, link.round_trip_ms / 4, link.quality(limited=True).loss, QUEUE_BYTES_MIN, JITTER_MS)
    with hosts_behind(link, NODES, False, SEED, folder, thin) as hosts, Programs(folder) as programs:
        host = hosts.nodes[-1]
        samples = sealed_samples(start_swarm(hosts, RUN, programs, folder), programs)
        before = next(one for one in samples if one.step >= WARMUP_STEPS and one.active == NODES)
        sent_bytes = host.traffic().sent_bytes
        after = next(one for one in samples if one.step >= before.step + rounds)
        sent_bytes = host.traffic().sent_bytes - sent_bytes
    if after.different:
        raise SwarmError(f"replicas differed {after.different} times; see the logs in {folder}")
    counted = after.counted_by[host.name] - before.counted_by[host.name]
    return ThinFigures(after.step - before.step, counted, sent_bytes)


def main(given: Sequence[str]) -> None:
    """Measure each share of lost packets, and print the figures."""
    parser = argparse.ArgumentParser("python -m bench.wide_area.thin_uplink", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=40, help="default %(default)s, of six seconds")
    parser.add_argument("--losses", type=float, nargs="+", default=[0.0, 1.0], metavar="PERCENT")
    arguments = parser.parse_args(given)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if missing := check_emulation().missing:
        console.print(f"skipped: emulating links needs {missing}")
        return
    for number in ENDING:
        signal.signal(number, signal.default_int_handler)
    folder = Path("runs").absolute() / f"thin-{datetime.datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}"
    title = f"up {1000 * UP_MBIT:g} kbit/s with up to {JITTER_MS:g} ms of jitter, down {LINK.rate_mbit:g} Mbit/s"
    console.print(f"{title}, {LINK.round_trip_ms:g} ms; rounds of {ROUND_MS / 1000:g} s; logs in {folder}")
    failed = False
    for percent in arguments.losses:
        into = folder / f"{percent:g}"
        into.mkdir(parents=True)
        began = time.monotonic()
        try:
            figures = measure(arguments.rounds, percent / 100, into)
        except SwarmError as error:
            failed = True
            console.print(f"{percent:g}% lost: failed: {error}", style="red")
            continue
        met = "met" if figures.share >= COUNTED_WANTED else "missed"
        console.print(
            f"{percent:g}% lost: counted in {figures.counted} of {figures.rounds} rounds, {figures.share:.0%} "
            f"(target: at least {COUNTED_WANTED:.0%}, {met}); "
            f"{figures.sent_bytes / figures.rounds:,.0f} B sent a round; {time.monotonic() - began:.0f} s"
        )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
