"""Tells a node's state directory from a coordinator's, whose files have the same names in part."""

from __future__ import annotations

from pathlib import Path

from thinwire_proto.errors import ConfigError

OF_NODES = ("enrolment.json", "head.json")
OF_COORDINATORS = "ledger.sqlite"


def check_not_of_a_node(folder: Path) -> None:
    """Raise ConfigError if a folder is the state directory of a node, before anything is written to it."""
    if (folder / OF_COORDINATORS).exists() or not any((folder / name).exists() for name in OF_NODES):
        return
    raise ConfigError(f"{folder} is the state directory of a node; give the coordinator's --state-dir")
