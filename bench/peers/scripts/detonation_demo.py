"""detonation: DeMo as published, every node's largest components gathered by all.

Its package needs mltiming without requiring it, and has no `DeMo` at the place from which its description imports it.
"""

from __future__ import annotations

import torch.distributed as dist
from detonation.optim.demo import DeMo

from bench.peers.scripts.trainee import Trainee

RATE = 1.5e-3
"""The best rate of DeMo as published on this model in docs/convergence."""


def main() -> None:
    node = Trainee()
    dist.init_process_group("gloo", f"tcp://{node.addresses[0]}:29500", rank=node.rank, world_size=node.ranks)
    alone = [dist.new_group([rank]) for rank in range(node.ranks)][node.rank]
    optimizer = DeMo(
        node.loss.parameters(),
        lr=RATE,
        sharding_parallel_group=alone,
        replication_parallel_group=dist.group.WORLD,
    )
    schedule = node.warmup(optimizer)
    step = 0
    while True:
        node.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        step += 1
        node.done(step)


if __name__ == "__main__":
    main()
