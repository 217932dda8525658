"""decent-dp: every node averages its parameters with one other in each step."""

from __future__ import annotations

import torch.distributed as dist
from decent_dp.ddp import DecentralizedDataParallel

from bench.peers.scripts.trainee import Trainee


def main() -> None:
    node = Trainee()
    dist.init_process_group("gloo", f"tcp://{node.addresses[0]}:29500", rank=node.rank, world_size=node.ranks)
    module = DecentralizedDataParallel(
        node.loss,
        optim_fn=lambda named: node.adamw([tensor for _, tensor in named]),
        lr_scheduler_fn=node.warmup,
        topology="one-peer-exp",
        _local_world_size=1,
    )
    while True:
        node.backward(module, module.set_accumulate_grad)
        node.done()


if __name__ == "__main__":
    main()
