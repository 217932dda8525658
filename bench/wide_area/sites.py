"""Measure two sites of two ranks over an emulated slow link: DeMo between shards, beside the all-reduce of HSDP.

    python -m bench.wide_area.sites --rate-mbit 10 --round-trip-ms 100     needs root, as `make bench-wan`

The ranks of a site are in one network namespace, so between them nothing is slow. All arms run in the same processes,
in short turns. The possible speed is that of sites that do not exchange, in the same turn: shares are medians of
turns, because other programs of the machine disturb a turn as a whole. They disturb processor time less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from bench.wide_area.baseline import STORE_PORT
from bench.wide_area.ddp import PATIENCE, RESULT
from bench.wide_area.hosts import LinkSpec, hosts_behind
from bench.wide_area.line import DEVICE
from bench.wide_area.needs import check_emulation
from bench.wide_area.programs import Programs, module
from bench.wide_area.site_rank import SITES, Turn
from bench.wide_area.workload import SEED


def main() -> None:
    arguments = _arguments()
    machine = check_emulation()
    if machine.missing:
        sys.exit(f"emulating links needs {machine.missing}")
    link = LinkSpec(arguments.rate_mbit, arguments.round_trip_ms, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        turns = _measure(link, machine.netem, arguments, Path(folder))
    print(
        f"{SITES} sites of {arguments.ranks} ranks; between them {link.rate_mbit:g} Mbit/s, {link.round_trip_ms:g} ms"
    )
    possible = _of_arm(turns, next(iter(_arms(turns))))
    for arm in _arms(turns):
        tried = _of_arm(turns, arm)
        shares = [
            _tokens_a_second(ours) / _tokens_a_second(theirs) for ours, theirs in zip(tried, possible, strict=True)
        ]
        low, middle, high = statistics.quantiles(shares, n=4)
        cpu = statistics.median(
            _cpu_a_token(ours) / _cpu_a_token(theirs) for ours, theirs in zip(tried, possible, strict=True)
        )
        print(
            f"{arm:34} {statistics.median(map(_tokens_a_second, tried)):7,.0f} tokens/s,"
            f" {middle:6.1%} of possible ({low:.0%} to {high:.0%}); processor time a token {cpu:.3f};"
            f" a site sends {statistics.median(one[0].sent_bytes / one[0].steps for one in tried):,.0f} bytes in a step"
        )


def _measure(link: LinkSpec, netem: bool, arguments: argparse.Namespace, folder: Path) -> list[list[Turn]]:
    """The turns of each rank."""
    ranks = SITES * arguments.ranks
    with hosts_behind(link, SITES, netem, SEED, folder) as hosts, Programs(folder) as programs:
        for rank in range(ranks):
            command = [*module("bench.wide_area.site_rank"), "--rank", str(rank), "--ranks", str(ranks)]
            command += ["--store", f"{hosts.nodes[0].address}:{STORE_PORT}", "--device", DEVICE]
            command += ["--passes", str(arguments.passes), "--seconds", str(arguments.seconds)]
            command += ["--turns", str(arguments.turns)]
            host = hosts.nodes[rank // arguments.ranks]
            programs.start(f"rank-{rank}", host.inside(*command))
        programs.wait_until_all_end("the ranks", PATIENCE.total_seconds())
        lines = [line for process in programs.all for line in process.text().splitlines() if line.startswith(RESULT)]
    return [[Turn(**turn) for turn in json.loads(line.removeprefix(RESULT))] for line in lines]


def _arms(turns: list[list[Turn]]) -> dict[str, None]:
    """The names of the arms, in their order."""
    return dict.fromkeys(turn.arm for turn in turns[0])


def _of_arm(turns: list[list[Turn]], arm: str) -> list[tuple[Turn, ...]]:
    """By turn, those of all ranks."""
    return [same for same in zip(*turns, strict=True) if same[0].arm == arm]


def _tokens_a_second(of_ranks: tuple[Turn, ...]) -> float:
    return sum(turn.tokens for turn in of_ranks) / max(turn.wall_s for turn in of_ranks)


def _cpu_a_token(of_ranks: tuple[Turn, ...]) -> float:
    return sum(turn.cpu_s for turn in of_ranks) / sum(turn.tokens for turn in of_ranks)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m bench.wide_area.sites", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate-mbit", type=float, default=10.0, help="of each site's line, in each direction")
    parser.add_argument("--round-trip-ms", type=float, default=100.0)
    parser.add_argument("--ranks", type=int, default=2, help="of a site")
    parser.add_argument("--passes", type=int, default=3, help="micro-batches of a rank and step")
    parser.add_argument("--seconds", type=float, default=6.0, help="of a turn")
    parser.add_argument("--turns", type=int, default=9, help="2 or more")
    return parser.parse_args()


if __name__ == "__main__":
    main()
