"""The part of a local swarm's summary that only a run without a centre has."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from thinwire_coordinator.cli.status_table import disagreement
from thinwire_proto.wire.service_pb2 import GossipStatus, StatusReply


def add_gossip(table: Table, gossip: GossipStatus) -> None:
    table.add_row("disagreement", disagreement(gossip))
    every = "each iteration" if gossip.every <= 1 else f"one of {gossip.every} iterations"
    table.add_row("exchange", f"{gossip.codec}, {every}; topology {gossip.topology}, {gossip.beats} beats sealed")


def print_model(folder: Path, status: StatusReply, console: Console) -> None:
    """What `export` gives."""
    nodes = status.gossip.deposits
    console.print(f"the model is the exact mean of the parameters of {nodes} nodes, which `export` gives:")
    console.print(f"  thinwire-coordinator export --state-dir {folder / 'coordinator'} --out MODEL", style="dim")
