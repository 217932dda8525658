"""Settings of a node process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from thinwire_node.options import NodeOptions
from thinwire_node.resources import ResourceLimits
from thinwire_proto.identity.invite import Invite


@dataclass(frozen=True)
class NodeSettings:
    """The settings of one node process. invite: of the coordinator at `address`; None for one on this machine."""

    address: str
    state_dir: Path
    device: str
    options: NodeOptions
    give_up_after_s: float | None
    limits: ResourceLimits | None = None
    """Bounds on the memory and disk that a contract takes. None: they are not checked."""
    invite: Invite | None = None
