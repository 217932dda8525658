"""The command `thinwire-coordinator status`."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from thinwire_coordinator.cli.status_client import ask_status
from thinwire_coordinator.cli.status_table import table


def print_status(address: str, state_dir: Path | None) -> None:
    """Print the status of the swarm. Raises RemoteError if no coordinator answers at `address`."""
    Console().print(table(ask_status(address, state_dir)))
