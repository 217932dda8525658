"""Measure `Gossip` beside computing alone, DistributedDataParallel and decent-dp, on four ranks behind emulated lines.

An exchange of all parameters with one peer takes the given shares of an iteration's computing, which sleeps instead of
occupying a core. All methods run in the same processes, over the same lines, one after the other. Needs root.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.decentralized.rank import PAUSE_SHARE
from bench.decentralized.rank_programs import run_ranks
from bench.wide_area.hosts import DEVICE, Host, LinkSpec, hosts_behind
from bench.wide_area.needs import check_emulation

RANKS = 4
STORE_PORT = 29501
PATIENCE_S = 900.0


def main() -> None:
    arguments = _arguments()
    machine = check_emulation()
    if machine.missing:
        sys.exit(f"lines cannot be emulated here: {machine.missing}")
    link = LinkSpec(arguments.rate, arguments.round_trip, 0.0)
    with tempfile.TemporaryDirectory() as folder, hosts_behind(link, RANKS, machine.netem, 1, Path(folder)) as hosts:
        found = _run(hosts.nodes, arguments, Path(folder))
    print(json.dumps(found, indent=1) if arguments.json else _table(found, link, machine.netem, arguments.pause_share))


def _run(nodes: list[Host], arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    options = ["--device", DEVICE, "--steps", str(arguments.steps), "--shares", *map(str, arguments.shares)]
    options += ["--pauses", *map(str, arguments.slacks), "--pause-share", str(arguments.pause_share)]
    return run_ranks(nodes, "bench.decentralized.rank", STORE_PORT, options, folder, PATIENCE_S)


def _table(found: dict[str, Any], link: LinkSpec, netem: bool, pause_share: float) -> str:
    lines = [
        f"{link.rate_mbit:g} Mbit/s and {link.round_trip_ms:g} ms by {'netem' if netem else 'a line in Python'}; "
        f"exchange with one peer {found['message_s']:.2f} s, all-reduce X {found['reduce_s']:.2f} s",
        "",
        "| exchange / T | T alone | Gossip | one bit | DDP | decent-dp | Gossip keeps | one bit keeps | DDP keeps |"
        " DDP / Gossip | 1 + X/T | decent-dp / Gossip | decent-dp / one bit |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in found["cells"]:
        if "share" in cell:
            names = ("alone", "gossip", "one_bit", "ddp", "decent_dp")
            alone, gossip, one_bit, ddp, theirs = (cell[name] for name in names)
            lines.append(
                f"| {cell['share']:g} | {alone:.3f} s | {gossip:.3f} s | {one_bit:.3f} s | {ddp:.3f} s | "
                f"{theirs:.3f} s | {alone / gossip:.0%} | {alone / one_bit:.0%} | {alone / ddp:.0%} | "
                f"{ddp / gossip:.2f}× | "
                f"{1 + found['reduce_s'] / alone:.2f}× | {theirs / gossip:.2f}× | {theirs / one_bit:.2f}× |"
            )
    for cell in found["cells"]:
        if "slack" in cell:
            lines.append(
                f"\nslack {cell['slack']}: one rank in four pauses 1 s in {pause_share:.0%} of its steps of 1 s: "
                f"{cell['pauses']:.3f} s a step, {cell['pauses'] - 1:+.0%}"
            )
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m bench.decentralized", description=__doc__)
    parser.add_argument("--rate", type=float, default=10.0, metavar="MBIT", help="of each rank's line, each way")
    parser.add_argument("--round-trip", type=float, default=20.0, metavar="MS")
    parser.add_argument("--shares", type=float, nargs="*", default=[0.2, 0.5, 0.8], help="exchange over computing")
    parser.add_argument("--slacks", type=int, nargs="*", default=[0, 2], help="also measure pauses with these slacks")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument(
        "--pause-share", type=float, default=PAUSE_SHARE, metavar="SHARE", help="of the paused rank's steps, 0 to 1"
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if not 0 < arguments.pause_share <= 1:
        parser.error(f"--pause-share is above 0, and at most 1; it is {arguments.pause_share:g}")
    return arguments


if __name__ == "__main__":
    main()
