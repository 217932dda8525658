"""torchft: Streaming DiLoCo, which exchanges half of the model after every 8 steps."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch import nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torchft import Manager, ProcessGroupGloo
from torchft.local_sgd import DiLoCo

from bench.peers.scripts.trainee import Trainee

STEPS = 16
"""Steps between two exchanges of the same parameter."""


def main() -> None:
    node = Trainee()
    inner = node.adamw()
    schedule = node.warmup(inner)
    embedding, blocks, norm, _ = node.loss.decoder.children()  # the head has the embedding's parameter
    assert isinstance(blocks, nn.ModuleList)
    half = len(blocks) // 2
    fragments = [nn.ModuleList([embedding, *blocks[:half]]), nn.ModuleList([*blocks[half:], norm])]
    outer = [torch.optim.SGD(part.parameters(), lr=0.7, momentum=0.9, nesterov=True) for part in fragments]

    def state() -> dict[str, Any]:
        return {"model": node.loss.state_dict(), "optimizer": inner.state_dict()}

    def load(state: dict[str, Any]) -> None:
        node.loss.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    store = TCPStore(node.address, 29500, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=20)),
        load_state_dict=load,
        state_dict=state,
        min_replica_size=2,
        use_async_quorum=False,
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
    with DiLoCo(manager, fragments, inner, outer, sync_every=STEPS):
        exchanged = 0
        while True:
            node.backward()
            inner.step()
            schedule.step()
            inner.zero_grad()
            now = manager.current_step()
            node.done(now if now != exchanged else None)
            exchanged = now


if __name__ == "__main__":
    main()
