"""The registry of the local rules of all exchanges, by `rule.kind` of the contract.

Each exchange has a package of rules, with a port that says how a node uses one: `star.rules.rule` and
`gossip.rules.own_steps`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thinwire_proto.kinds import Kinds

RULES: Kinds[Callable[..., Any]] = Kinds(
    "rule.kind",
    "thinwire_node.star.rules",
    "thinwire_node.gossip.rules",
)
"""Constructors. Each takes what its exchange gives it: see `star.rules.rule` and `gossip.rules.own_steps`."""
