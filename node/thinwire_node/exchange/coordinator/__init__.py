"""The star: an exchange in which one coordinator serves all nodes."""

from thinwire_node.exchange.coordinator.star import open_star
from thinwire_node.exchange.kinds import STAR, register

register(STAR, open_star)
