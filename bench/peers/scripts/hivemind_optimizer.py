"""hivemind's Optimizer: gradients averaged by all-reduce among the peers that a DHT knows."""

from __future__ import annotations

import hivemind
import torch
from hivemind.compression import Uniform8BitQuantization

from bench.peers.scripts.trainee import Trainee
from bench.wide_area.workload import SAMPLES


def main() -> None:
    node = Trainee()
    dht = hivemind.DHT(
        initial_peers=[node.join],
        host_maddrs=[f"/ip4/{node.address}/tcp/0"],
        start=True,
    )
    optimizer = hivemind.Optimizer(
        dht=dht,
        run_id="bench",
        target_batch_size=SAMPLES * node.ranks,
        batch_size_per_step=SAMPLES,
        params=list(node.loss.parameters()),
        optimizer=node.adamw,
        scheduler=node.warmup,
        matchmaking_time=3.0,
        averaging_timeout=30.0,
        grad_compression=Uniform8BitQuantization(),
        verbose=True,
    )
    torch.manual_seed(node.rank)
    while True:
        node.backward()
        optimizer.step()
        optimizer.zero_grad()
        node.done(optimizer.local_epoch)


if __name__ == "__main__":
    main()
