"""Training without a centre, in any script that torchrun starts. docs/decentralized.md explains it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thinwire_node.decentralized.accum_adam import AccumAdam, AccumAdamW
    from thinwire_node.decentralized.data_parallel import DecentralizedDataParallel
    from thinwire_node.decentralized.gossip import Gossip
    from thinwire_node.decentralized.muon import Muon
    from thinwire_node.decentralized.param_groups import muon_groups

__all__ = ["AccumAdam", "AccumAdamW", "DecentralizedDataParallel", "Gossip", "Muon", "muon_groups"]

_MODULES = {
    "AccumAdam": "accum_adam",
    "AccumAdamW": "accum_adam",
    "DecentralizedDataParallel": "data_parallel",
    "Gossip": "gossip",
    "Muon": "muon",
    "muon_groups": "param_groups",
}


def __getattr__(name: str) -> Any:
    """Load a class, and torch with it, only on demand."""
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
