"""One rank of a site, in each of the arms that `bench.wide_area.sites` compares, in turns."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from bench.wide_area.ddp import PATIENCE, RESULT, CounterReading
from bench.wide_area.loss_module import LossModule
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
    mesh = init_device_mesh("cpu", (SITES, ranks // SITES), mesh_dim_names=("site", "rank"))
    alone = [dist.new_group([rank]) for rank in range(ranks)][dist.get_rank()]

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


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.wide_area.site_rank", description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--store", required=True, metavar="HOST:PORT", help="address of rank 0")
    parser.add_argument("--device", required=True, help="network device of the exchange")
    parser.add_argument("--passes", type=int, required=True, help="micro-batches of a rank and step")
    parser.add_argument("--seconds", type=float, required=True, help="of a turn")
    parser.add_argument("--turns", type=int, required=True)
    arguments = parser.parse_args()
    os.environ["GLOO_SOCKET_IFNAME"] = arguments.device
    torch.set_num_threads(THREADS)
    address = f"tcp://{arguments.store}"
    dist.init_process_group("gloo", address, timeout=PATIENCE, rank=arguments.rank, world_size=arguments.ranks)
    generator = torch.Generator().manual_seed(SEED + arguments.rank)
    made, found = arms(arguments.ranks), []
    for _ in range(arguments.turns):
        for name, arm in made.items():
            turn = _turn(name, arm, arguments.passes, arguments.seconds, arguments.device, generator)
            found.append(asdict(turn))
    print(RESULT + json.dumps(found), flush=True)
    dist.barrier()  # rank 0 must not end first, because it holds the store
    os._exit(0)


def _turn(name: str, arm: Arm, passes: int, seconds: float, device: str, generator: torch.Generator) -> Turn:
    began = time.perf_counter()
    for _ in range(STEPS_WARMUP):
        arm.step(passes, generator)
    step_s = (time.perf_counter() - began) / STEPS_WARMUP
    steps = torch.tensor([max(STEPS_MIN, round(seconds / step_s))])
    dist.broadcast(steps, 0)  # equal on all ranks
    dist.barrier()
    before, cpu_s = CounterReading(device, 0), time.process_time()
    for _ in range(int(steps)):
        arm.step(passes, generator)
    cpu_s = time.process_time() - cpu_s
    tokens = int(steps) * passes * MICRO_BATCH * BYTE_PRESETS[PRESET].context
    result = before.result(tokens, int(steps), 0.0, [])
    return Turn(name, int(steps), tokens, result.wall_s, cpu_s, result.sent_bytes)


if __name__ == "__main__":
    main()
