"""The steps of a node that steps by itself. Each rule is a module that registers itself by its kind in the contract."""

from thinwire_node.gossip.rules.own_steps import OwnSteps, make_own_steps

__all__ = ["OwnSteps", "make_own_steps"]
