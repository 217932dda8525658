"""Saves to a node's state directory, in one call."""

from __future__ import annotations

from thinwire_node.storage.state import KeptMomentum, NodeState


def save_momentum(state: NodeState, kept: KeptMomentum) -> None:
    state.publish(state.write_momentum(kept))
