"""Tests that a node with one wrong bit is detected at its next contribution, and that its votes are not merged."""

from __future__ import annotations

import asyncio

import pytest
import torch

from chaos import Failed, check_logs
from support.real import RealSwarm, run_text, until
from thinwire_node.daemon import Node
from thinwire_node.settings import NodeOptions, NodeSettings
from thinwire_node.star.trainer import Trainer


async def test_one_flipped_bit_is_detected_and_the_node_resyncs(
    swarm: RealSwarm, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator = swarm.coordinator(run_text(100_000))
    options = NodeOptions("flipped", 4, None)
    node = Node(NodeSettings(swarm.address, swarm.folder / "node", "cpu", options, None, invite=swarm.invite))
    micro_batch = Trainer.micro_batch
    flipped_at: list[int] = []

    def flip_once(trainer: Trainer, positions: range) -> None:
        micro_batch(trainer, positions)
        if trainer.replica.step >= 5 and not flipped_at:
            flipped_at.append(trainer.replica.step)
            with torch.no_grad():
                trainer.replica.tensors["blocks.0.feed.up.weight"].view(torch.int32)[3, 4] ^= (
                    1  # the last bit of one value
                )

    monkeypatch.setattr(Trainer, "micro_batch", flip_once)
    stop = asyncio.Event()
    running = asyncio.ensure_future(node.run(stop))
    await asyncio.to_thread(
        until, lambda: flipped_at and swarm.status().step > flipped_at[0] + 5 and node.record.counted > 10, "healed"
    )
    stop.set()
    await running

    status = swarm.status()
    assert (status.fingerprints_different, status.nodes[0].not_counted) == (1, 1)
    assert node.record.resyncs == 1
    assert node.record.not_counted == 1
    assert [event["step"] for event in coordinator.events("coordinator.replica_differs")] == flipped_at
    with pytest.raises(Failed, match=r"coordinator\.0\.log:\d+: .*coordinator.replica_differs"):
        check_logs(swarm.folder)  # the check of `make chaos`
    told = [vars(record)["fields"] for record in caplog.records if getattr(record, "event", None) == "node.not_counted"]
    assert [fields["replica_differs"] for fields in told] == [True]
    coordinator.end(10)
    swarm.verify()
