"""decent-dp: every node averages its parameters with one other in each step."""

from __future__ import annotations

import torch
import torch.distributed as dist
from decent_dp.ddp import DecentralizedDataParallel
from decent_dp.optim import AccumAdamW
from torch import Tensor

from bench.peers.scripts.trainee import ADAMW_RATE, BETAS, Trainee


def optimizer_of(named: list[tuple[str, Tensor]]) -> torch.optim.Optimizer:
    return AccumAdamW([tensor for _, tensor in named], lr=ADAMW_RATE, betas=BETAS)


def main() -> None:
    node = Trainee()
    dist.init_process_group("gloo", f"tcp://{node.addresses[0]}:29500", rank=node.rank, world_size=node.ranks)
    module = DecentralizedDataParallel(
        node.loss,
        optim_fn=optimizer_of,
        lr_scheduler_fn=node.warmup,
        topology="one-peer-exp",
        _local_world_size=1,
    )
    module.set_accumulate_grad(enable=False)
    while True:
        node.backward(module)
        node.done()


if __name__ == "__main__":
    main()
