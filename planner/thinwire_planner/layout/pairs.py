"""The time of a message between any two hosts, as a matrix."""

from __future__ import annotations

import numpy as np

from thinwire_planner.timing.link import Floats, transfer_s, wire_bits
from thinwire_planner.timing.network import Network
from thinwire_proto.gossip.placement import LineSeconds


def pair_seconds(network: Network, size_bytes: float) -> Floats:
    """Seconds of one message alone on the lines, the slower way of the two: [hosts, hosts], 0 on the diagonal."""
    lines = lines_between(network, size_bytes)
    one_way = lines.sending_s + lines.delay_s
    return np.asarray(np.maximum(one_way, one_way.T))


def lines_between(network: Network, size_bytes: float) -> LineSeconds:
    """The lines between hosts, for messages of this size; 0 on the diagonal."""
    rate = np.minimum(network.up_bits_s[:, None], network.down_bits_s[None, :])
    rtt = network.rtt_s[np.ix_(network.sites, network.sites)]
    whole_s = transfer_s(size_bytes, rtt, rate, loss=network.loss, congestion=network.congestion)
    sending_s = np.minimum(wire_bits(size_bytes) / rate, whole_s)
    delay_s = whole_s - sending_s
    for seconds in (sending_s, delay_s):
        np.fill_diagonal(seconds, 0.0)
    return LineSeconds(sending_s, delay_s)
