"""Tests of the lines and the summary that `make swarm` prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from deploy.local_swarm.summary import SwarmOutcome, print_summary
from deploy.local_swarm.view import View
from thinwire_proto.wire.service_pb2 import GossipStatus, NodeStatus, StatusReply


def test_the_bytes_of_a_run_without_a_centre_fit_into_80_columns() -> None:
    nodes = [
        NodeStatus(name=f"node-{n}", bytes_up=123_400_000, bytes_down=123_400_000, relay_up=246_800_000)
        for n in range(3)
    ]
    status = StatusReply(step=200, parameters=900_000, tokens=1, nodes=nodes, gossip=GossipStatus(members=3))
    outcome = SwarmOutcome(status, {node.name: None for node in nodes}, True, "verified", "x", Path("runs"), 1.0)
    console = Console(width=80)
    with console.capture() as capture:
        print_summary(outcome, console)
    rows = [line.split() for line in capture.get().splitlines()]
    assert ["node-0", "123.4", "MB", "123.4", "MB", "0", "B", "246.8", "MB", "1.3711", "B", "8×"] in rows
    assert ["fp32", "all-reduce", "960.0", "MB", "960.0", "MB", "10.6667", "B"] in rows


@pytest.mark.parametrize(("gossip", "unit"), [(None, "step"), (GossipStatus(), "iteration")], ids=["star", "gossip"])
def test_a_line_says_which_losses_it_has_and_of_when(gossip: GossipStatus | None, unit: str) -> None:
    """The held-out loss stands still between two measurements."""
    status = StatusReply(step=27, steps=40, loss_newest=5.363, loss_newest_step=20, loss_training=5.1, gossip=gossip)
    console = Console(width=200)
    with console.capture() as capture:
        View(console).show(status, last=True)
    start = f"{unit} 27/40  training loss 5.100, held-out loss 5.363 at {unit} 20  "
    assert capture.get().startswith(start)
