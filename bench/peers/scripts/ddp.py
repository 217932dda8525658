"""DistributedDataParallel of PyTorch with AdamW."""

from __future__ import annotations

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bench.peers.scripts.trainee import Trainee


def main() -> None:
    node = Trainee()
    dist.init_process_group("gloo", f"tcp://{node.addresses[0]}:29500", rank=node.rank, world_size=node.ranks)
    module = DistributedDataParallel(node.loss)
    optimizer = node.adamw()
    schedule = node.warmup(optimizer)
    step = 0
    while True:
        node.backward(module)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        step += 1
        node.done(step)


if __name__ == "__main__":
    main()
