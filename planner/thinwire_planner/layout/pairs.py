"""The time of a message between any two hosts, as a matrix."""

from __future__ import annotations

import numpy as np

from thinwire_planner.timing.link import Floats, transfer_s
from thinwire_planner.timing.network import Network


def pair_seconds(network: Network, size_bytes: float) -> Floats:
    """Seconds of one message alone on the lines, the slower way of the two: [hosts, hosts], 0 on the diagonal."""
    rate = np.minimum(network.up_bits_s[:, None], network.down_bits_s[None, :])
    rtt = network.rtt_s[np.ix_(network.sites, network.sites)]
    one_way = transfer_s(size_bytes, rtt, rate, loss=network.loss, congestion=network.congestion)
    found = np.asarray(np.maximum(one_way, one_way.T))
    np.fill_diagonal(found, 0.0)
    return found
