"""The node: trains on a volunteer's machine, keeps its momentum there, and sends only its largest components.

`DeMo` is the optimizer alone, and `Gossip` training without a centre, both for use in any training script.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thinwire_node.decentralized.gossip import Gossip
    from thinwire_node.optimizer.optimizer import DeMo

__all__ = ["DeMo", "Gossip"]


def __getattr__(name: str) -> Any:
    """Load these, and torch with them, only on demand, so that `thinwire-node status` starts quickly."""
    if name == "DeMo":
        from thinwire_node.optimizer.optimizer import DeMo  # noqa: PLC0415

        return DeMo
    if name == "Gossip":
        from thinwire_node.decentralized.gossip import Gossip  # noqa: PLC0415

        return Gossip
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
