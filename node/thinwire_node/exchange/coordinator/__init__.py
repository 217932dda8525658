"""The star: an exchange with one coordinator in the middle."""

from thinwire_node.exchange.coordinator.star import open_star
from thinwire_node.exchange.kinds import STAR, register

register(STAR, open_star)
