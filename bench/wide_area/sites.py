"""Measure two sites of two ranks over an emulated slow link: DeMo between shards, beside the all-reduce of HSDP.

    python -m bench.wide_area.sites --rate-mbit 10 --round-trip-ms 100     needs root, as `make bench-wan`

The ranks of a site are in one network namespace, so between them nothing is slow. All arms run in the same processes,
in short turns. The possible speed is that of sites that do not exchange, in the same turn: shares are medians of
turns, because other programs of the machine disturb a turn as a whole. They disturb processor time less.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from bench.wide_area.ddp import PATIENCE, RESULT, STORE_PORT, CounterReading
from bench.wide_area.hosts import LinkSpec, hosts_behind
from bench.wide_area.line import DEVICE
from bench.wide_area.loss_module import LossModule
from bench.wide_area.needs import check_emulation
from bench.wide_area.programs import Programs, module
from bench.wide_area.workload import MICRO_BATCH, PRESET, SEED, THREADS
from thinwire import DeMo
from thinwire_proto.models import BYTE_PRESETS

SITES = 2
STEPS_WARMUP, STEPS_MIN = 1, 2
RATE = 1e-3


@dataclass(frozen=True)
class Turn:
    """The work of a rank in one turn of an arm. cpu_s: processor time. sent_bytes: of its host, on the slow device."""

    arm: str
    steps: int
    tokens: int
    wall_s: float
    cpu_s: float
    sent_bytes: int


def main() -> None:
    arguments = _arguments()
    if arguments.store:
        run_rank(arguments)
        return
    machine = check_emulation()
    if machine.missing:
        sys.exit(f"emulating links needs {machine.missing}")
    link = LinkSpec(arguments.rate_mbit, arguments.round_trip_ms, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        turns = _measure(link, arguments, Path(folder))
    print(
        f"{SITES} sites of {arguments.ranks} ranks; between them {link.rate_mbit:g} Mbit/s, {link.round_trip_ms:g} ms"
    )
    names = list(dict.fromkeys(turn.arm for turn in turns[0]))
    possible = _of_arm(turns, names[0])
    for arm in names:
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


def _measure(link: LinkSpec, arguments: argparse.Namespace, folder: Path) -> list[list[Turn]]:
    """The turns of each rank."""
    with hosts_behind(link, SITES, SEED, folder) as hosts, Programs(folder) as programs:
        for rank in range(SITES * arguments.ranks):
            command = [*module("bench.wide_area.sites"), "--rank", str(rank), "--ranks", str(arguments.ranks)]
            command += ["--store", f"{hosts.nodes[0].address}:{STORE_PORT}", "--passes", str(arguments.passes)]
            command += ["--seconds", str(arguments.seconds), "--turns", str(arguments.turns)]
            programs.start(f"rank-{rank}", hosts.nodes[rank // arguments.ranks].inside(*command))
        programs.wait_until_all_end("the ranks", PATIENCE.total_seconds())
        lines = [line for process in programs.all for line in process.text().splitlines() if line.startswith(RESULT)]
    return [[Turn(**turn) for turn in json.loads(line.removeprefix(RESULT))] for line in lines]


def _of_arm(turns: list[list[Turn]], arm: str) -> list[tuple[Turn, ...]]:
    """By turn, those of all ranks."""
    return [same for same in zip(*turns, strict=True) if same[0].arm == arm]


def _tokens_a_second(of_ranks: tuple[Turn, ...]) -> float:
    return sum(turn.tokens for turn in of_ranks) / max(turn.wall_s for turn in of_ranks)


def _cpu_a_token(of_ranks: tuple[Turn, ...]) -> float:
    return sum(turn.cpu_s for turn in of_ranks) / sum(turn.tokens for turn in of_ranks)


# a rank


class Arm:
    """A model that is sharded over `mesh`, and its optimizer."""

    def __init__(self, mesh: DeviceMesh, optimizer_of: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]):
        self._model = LossModule()
        for block in self._model.decoder.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self._model, mesh=mesh)
        self._optimizer = optimizer_of(list(self._model.parameters()))

    def step(self, passes: int, generator: torch.Generator) -> None:
        """Some passes, whose gradients meet in the last one, and a step."""
        spec = BYTE_PRESETS[PRESET]
        for number in range(passes):
            assert isinstance(self._model, FSDPModule)
            self._model.set_requires_gradient_sync(number == passes - 1)
            tokens = torch.randint(spec.vocabulary, (MICRO_BATCH, spec.context + 1), generator=generator)
            (self._model(tokens) / passes).backward()
        self._optimizer.step()
        self._optimizer.zero_grad()


def arms(ranks: int) -> dict[str, Arm]:
    """ranks: of a site."""
    mesh = init_device_mesh("cpu", (SITES, ranks), mesh_dim_names=("site", "rank"))
    alone = [dist.new_group([rank]) for rank in range(SITES * ranks)][dist.get_rank()]

    def adamw(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=RATE)

    def demo(group: dist.ProcessGroup) -> Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]:
        best: dict[str, Any] = {"compression_decay": 0.99, "magnitude": "clipped", "precondition": "adam"}
        return lambda parameters: DeMo(parameters, lr=RATE, process_group=group, **best)

    return {
        "each site alone, FSDP2 and AdamW": Arm(mesh["rank"], adamw),
        "each site alone, FSDP2 and DeMo": Arm(mesh["rank"], demo(alone)),
        "both, HSDP and AdamW": Arm(mesh, adamw),
        "both, FSDP2 and DeMo": Arm(mesh["rank"], demo(mesh.get_group("site"))),
    }


def run_rank(given: argparse.Namespace) -> None:
    """One rank of a site, in each of the arms, in turns."""
    os.environ["GLOO_SOCKET_IFNAME"] = DEVICE
    torch.set_num_threads(THREADS)
    world = SITES * given.ranks
    dist.init_process_group("gloo", f"tcp://{given.store}", timeout=PATIENCE, rank=given.rank, world_size=world)
    generator = torch.Generator().manual_seed(SEED + given.rank)
    made, found = arms(given.ranks), []
    for _ in range(given.turns):
        for name, arm in made.items():
            found.append(asdict(_turn(name, arm, given.passes, given.seconds, generator)))
    print(RESULT + json.dumps(found), flush=True)
    dist.barrier()  # rank 0 must not end first, because it holds the store
    os._exit(0)


def _turn(name: str, arm: Arm, passes: int, seconds: float, generator: torch.Generator) -> Turn:
    began = time.perf_counter()
    for _ in range(STEPS_WARMUP):
        arm.step(passes, generator)
    step_s = (time.perf_counter() - began) / STEPS_WARMUP
    steps = torch.tensor([max(STEPS_MIN, round(seconds / step_s))])
    dist.broadcast(steps, 0)  # equal on all ranks
    dist.barrier()
    before, cpu_s = CounterReading(0), time.process_time()
    for _ in range(int(steps)):
        arm.step(passes, generator)
    cpu_s = time.process_time() - cpu_s
    tokens = int(steps) * passes * MICRO_BATCH * BYTE_PRESETS[PRESET].context
    result = before.result(tokens, int(steps), 0.0, [])
    return Turn(name, int(steps), tokens, result.wall_s, cpu_s, result.sent_bytes)


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
    parser.add_argument("--store", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
