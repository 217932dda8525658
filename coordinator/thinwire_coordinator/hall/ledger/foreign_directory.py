"""Tells a coordinator's state directory from a node's, whose files have the same names in part, and from others."""

from __future__ import annotations

from pathlib import Path

from thinwire_proto.errors import ConfigError
from thinwire_proto.identity.keys import KEY_FILE

OF_NODES = ("enrolment.json", "head.json")
OF_COORDINATORS = "ledger.sqlite"
OF_BEGUN_RUNS = frozenset({OF_COORDINATORS, "contract.json", "lock", KEY_FILE, "snapshots", "updates"})
"""A coordinator that has begun in a folder has left one of these there, and so has a copy of it."""
OF_SYSTEMS = "lost+found"
"""The top of a file system may have this."""
OF_ORGANIZERS = (".toml", ".pem", ".crt", ".key")
"""The run file and certificates, which an organizer may keep beside the run."""


def check_not_of_a_node(folder: Path) -> None:
    """Raise ConfigError if a folder is the state directory of a node, before anything is written to it."""
    if (folder / OF_COORDINATORS).exists() or not any((folder / name).exists() for name in OF_NODES):
        return
    raise ConfigError(f"{folder} is the state directory of a node; give the coordinator's --state-dir")


def check_begun_or_empty(folder: Path) -> None:
    """Raise ConfigError if a folder has files of others, and no coordinator has begun in it. Hidden ones do not count,
    nor do the organizer's."""
    found = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if found & OF_BEGUN_RUNS:
        return
    own = {name for name in found if name == OF_SYSTEMS or name.startswith(".") or name.endswith(OF_ORGANIZERS)}
    if foreign := sorted(found - own):
        raise ConfigError(
            f"{folder} has {foreign[0]}, and no coordinator has started there; give --state-dir an empty folder, or "
            "one that does not exist yet"
        )
