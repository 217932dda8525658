"""The time of a message between any two hosts, as a matrix."""

from __future__ import annotations

import numpy as np

from thinwire_planner.timing.link import Floats, transfer_s
from thinwire_planner.timing.network import Network


def pair_seconds(network: Network, size_bytes: float) -> Floats:
    """Seconds of one message alone on the lines, the slower way of the two: [hosts, hosts], 0 on the diagonal."""
    one_way = message_seconds(network, size_bytes)
    return np.asarray(np.maximum(one_way, one_way.T))


def message_seconds(network: Network, size_bytes: float, at_once: int = 1) -> Floats:
    """Seconds of one message by sender and receiver: [hosts, hosts], 0 on the diagonal. at_once: messages that share
    each line."""
    rate = np.minimum(network.up_bits_s[:, None], network.down_bits_s[None, :]) / at_once
    rtt = network.rtt_s[np.ix_(network.sites, network.sites)]
    found = transfer_s(size_bytes, rtt, rate, loss=network.loss, congestion=network.congestion)
    np.fill_diagonal(found, 0.0)
    return found
