"""Nodes in texts for people, where their names are not known."""

from __future__ import annotations

from thinwire_proto.identity.keys import PublicKey

NAME_DIGITS = 8
"""Digits of the id of a node whose name is not known; the coordinator shows as many."""


def short_name(key: PublicKey) -> str:
    """The first digits of a node's id."""
    return key.node_id[:NAME_DIGITS]
