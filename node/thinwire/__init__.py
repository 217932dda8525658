"""Optimizers for any training script: `DeMo`, which sends little, and `Gossip`, which averages with a few peers.

docs/optimizer.md and docs/decentralized.md explain them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thinwire.demo.optimizer import DeMo
    from thinwire.gossip.data_parallel import DecentralizedDataParallel
    from thinwire.gossip.gossip import Gossip
    from thinwire.steps.accum_adam import AccumAdam, AccumAdamW
    from thinwire.steps.muon import Muon, muon_groups
    from thinwire.steps.noise_corrected import NoiseCorrectedAdamW

__all__ = [
    "AccumAdam",
    "AccumAdamW",
    "DeMo",
    "DecentralizedDataParallel",
    "Gossip",
    "Muon",
    "NoiseCorrectedAdamW",
    "muon_groups",
]

_MODULES = {
    "AccumAdam": "steps.accum_adam",
    "AccumAdamW": "steps.accum_adam",
    "DeMo": "demo.optimizer",
    "DecentralizedDataParallel": "gossip.data_parallel",
    "Gossip": "gossip.gossip",
    "Muon": "steps.muon",
    "NoiseCorrectedAdamW": "steps.noise_corrected",
    "muon_groups": "steps.muon",
}


def __getattr__(name: str) -> Any:
    """Load a class, and torch with it, only on demand."""
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
