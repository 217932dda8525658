"""DistributedDataParallel of PyTorch with its Muon for matrices, and AdamW for the embedding and vectors."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bench.peers.scripts.trainee import BETAS, MUON_ADAMW_RATE, MUON_RATE, Trainee


def main() -> None:
    node = Trainee()
    dist.init_process_group("gloo", f"tcp://{node.addresses[0]}:29500", rank=node.rank, world_size=node.ranks)
    module = DistributedDataParallel(node.loss)
    named = list(node.loss.named_parameters())
    matrices = [one for name, one in named if one.dim() == 2 and "embedding" not in name]
    others = [one for name, one in named if one.dim() != 2 or "embedding" in name]
    optimizers = [
        torch.optim.Muon(matrices, lr=MUON_RATE, weight_decay=0.0, momentum=0.9, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=MUON_RATE * MUON_ADAMW_RATE, betas=BETAS),
    ]
    schedules = [node.warmup(optimizer) for optimizer in optimizers]
    step = 0
    while True:
        node.backward(module)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        step += 1
        node.done(step)


if __name__ == "__main__":
    main()
