"""Compare what the planner predicts with steps of three methods behind emulated lines: eight links, 24 cells.

DDP's all-reduce, and `Gossip` on the one-peer exponential graph, dense and with one bit a parameter. Computing sleeps,
as if a GPU did it. The planner gets each line's rate, round trip and loss, and T, the time of a step without exchange;
its other constants are its defaults. "gloo alone" exchanges the bytes of dense gossip, and does nothing else: what it
takes beyond the prediction, the line and TCP take. Needs root.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from itertools import product
from pathlib import Path

from bench.decentralized.cell_rank import ALONE, BARE, DDP, DENSE, ONE_BIT
from bench.decentralized.rank_programs import run_ranks
from bench.decentralized.workload import LAYERS, parameters_of
from bench.wide_area.hosts import DEVICE, Hosts, LinkSpec, hosts_behind
from bench.wide_area.needs import check_emulation
from thinwire_planner.methods.method import Setting, all_variants
from thinwire_planner.timing.compute import ComputeTimes
from thinwire_planner.timing.link import Congestion
from thinwire_planner.timing.network import Network

RANKS = 4
STORE_PORT = 29502
PATIENCE_S = 300.0
RATES_MBIT, ROUND_TRIPS_MS, LOSSES = (10.0, 100.0), (20.0, 100.0), (0.0, 0.01)
WITHIN = 0.15
"""Largest relative error that counts as predicted."""
CHOICE_WITHIN = 0.1
"""Largest excess of the chosen method's measured time over the best one's."""
VARIANTS = {
    DDP: "all-reduce, DDP",
    DENSE: "gossip, one-peer-exponential, dense",
    ONE_BIT: "gossip, one-peer-exponential, one bit",
}
UNLIMITED_BITS_S = 1e10


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.decentralized.cells", description=__doc__)
    parser.add_argument("--width", type=int, default=256, help=f"of each of the {LAYERS} layers")
    parser.add_argument("--compute", type=float, default=0.5, metavar="S", help="of a step, asleep")
    parser.add_argument("--steps", type=int, default=10, help="that are timed")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES_MBIT, metavar="MBIT", help="of each line")
    parser.add_argument("--round-trips", type=float, nargs="+", default=ROUND_TRIPS_MS, metavar="MS")
    parser.add_argument("--losses", type=float, nargs="+", default=LOSSES, metavar="SHARE", help="of packets")
    given = parser.parse_args()
    machine = check_emulation()
    if machine.missing:
        sys.exit(f"lines cannot be emulated here: {machine.missing}")
    within, choices, cells = 0, 0, 0
    print(f"{RANKS} ranks, {parameters_of(given.width):,} parameters, TCP with {congestion()}; seconds of a step\n")
    print(
        "| link | T | " + " | ".join(f"{name} | predicted | " for name in VARIANTS) + f" | {BARE} | choice over best |"
    )
    print("|---|---|" + "---|---|---|" * len(VARIANTS) + "---|---|")
    for rate, round_trip, loss in product(given.rates, given.round_trips, given.losses):
        link = LinkSpec(rate, round_trip, loss)
        with (
            tempfile.TemporaryDirectory() as folder,
            hosts_behind(link, RANKS, machine.netem, 1, Path(folder)) as hosts,
        ):
            found = measure(hosts, given, Path(folder))
        predicted = predict(link, given.width, found[ALONE])
        errors = {name: predicted[name] / found[name] - 1 for name in VARIANTS}
        over = found[min(VARIANTS, key=predicted.__getitem__)] / min(found[name] for name in VARIANTS) - 1
        within += sum(abs(error) <= WITHIN for error in errors.values())
        choices += over <= CHOICE_WITHIN
        cells += len(errors)
        row = [f"{rate:g} Mbit/s, {round_trip:g} ms, {100 * loss:g}%", f"{found[ALONE]:.3f}"]
        row += [f"{found[name]:.3f} | {predicted[name]:.3f} | {errors[name]:+.0%}" for name in VARIANTS]
        print("| " + " | ".join([*row, f"{found[BARE]:.3f}", f"{over:+.0%}"]) + " |", flush=True)
    links = cells // len(VARIANTS)
    print(f"\n{within} of {cells} within {WITHIN:.0%}; choice within {CHOICE_WITHIN:.0%} on {choices} of {links} links")


def congestion() -> Congestion:
    """The congestion control of this machine's TCP, which namespaces inherit."""
    found = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    return found if found in ("bbr", "reno") else "cubic"  # type: ignore[return-value]


def predict(link: LinkSpec, width: int, compute_s: float) -> Mapping[str, float]:
    """Seconds of a step of each method."""
    rate, rtt_s = link.rate_mbit * 1e6, link.round_trip_ms / 1000
    setting = Setting(
        parameters_of(width),
        ComputeTimes((compute_s,)),
        Network.uniform(RANKS, rate, rtt_s, loss=link.loss, congestion=congestion()),
        (1.0,) * RANKS,
        UNLIMITED_BITS_S,
        UNLIMITED_BITS_S,
    )
    variants = {variant.name: variant for variant in all_variants(setting)}
    return {name: variants[variant].forecast(setting).seconds for name, variant in VARIANTS.items()}


def measure(hosts: Hosts, given: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Seconds of a step of each method, and of computing alone. Raises SwarmError."""
    options = ["--device", DEVICE, "--steps", str(given.steps), "--width", str(given.width)]
    options += ["--compute", str(given.compute)]
    return run_ranks(hosts.nodes, "bench.decentralized.cell_rank", STORE_PORT, options, folder, PATIENCE_S)


if __name__ == "__main__":
    main()
