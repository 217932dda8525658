"""torchft: DistributedDataParallel that goes on when a replica group is lost."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

from bench.peers.scripts.trainee import Trainee


def main() -> None:
    node = Trainee()
    inner = node.adamw()
    schedule = node.warmup(inner)

    def load(state: dict[str, Any]) -> None:
        node.loss.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    store = TCPStore(node.address, 29500, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=20)),
        load_state_dict=load,
        state_dict=lambda: {"model": node.loss.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=2,
        timeout=timedelta(seconds=20),
        rank=0,
        world_size=1,
        store_addr=node.address,
        store_port=store.port,
        lighthouse_addr=f"http://{node.coordinator}:29510",
        hostname=node.address,
        replica_id=f"node-{node.rank}",
        init_sync=False,  # all begin with the same parameters
    )
    module = DistributedDataParallel(manager, node.loss)
    optimizer = Optimizer(manager, inner)
    while True:
        optimizer.zero_grad()
        node.backward(module)
        optimizer.step()
        schedule.step()
        node.done(manager.current_step())


if __name__ == "__main__":
    main()
