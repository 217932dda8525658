"""The part of a local swarm's summary that only a gossip run has."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.console import Console
from rich.table import Table

from thinwire_coordinator.cli.status import disagreement
from thinwire_proto.wire.service_pb2 import GossipStatus, StatusReply


def add_gossip(table: Table, gossip: GossipStatus) -> None:
    table.add_row("disagreement", disagreement(gossip))
    table.add_row("exchange", f"{gossip.codec}; topology {gossip.topology}, {gossip.beats} beats sealed")


def print_model(folder: Path, status: StatusReply, console: Console) -> None:
    """Print how many nodes the model is the mean of, and the command that exports it."""
    nodes = status.gossip.deposits
    console.print(f"the model is the exact mean of the parameters of {nodes} nodes, which `export` gives:")
    words = "thinwire-coordinator", "export", "--state-dir", str(folder / "coordinator"), "--out", "MODEL"
    console.print(f"  {shlex.join(words)}", style="dim", soft_wrap=True, markup=False)
