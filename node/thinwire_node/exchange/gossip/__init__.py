"""Gossip: an exchange in which nodes average with a few others, and one coordinator is their directory."""

from thinwire_node.exchange.gossip.gossip import open_gossip
from thinwire_node.exchange.kinds import register

register("gossip", open_gossip)
