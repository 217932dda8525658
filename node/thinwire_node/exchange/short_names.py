"""Nodes in texts for people, where their names are not known."""

from __future__ import annotations

NAME_DIGITS = 8
"""The coordinator shows as many."""


def short_name(node_id: str) -> str:
    """The first digits of a node's id."""
    return node_id[:NAME_DIGITS]
