"""The time of a message over a TCP connection.

    t(m) = RTT/2 + 8·m·(1 + h) / rate + ramp(m) + recovery(m)

The problem: on a line of 100 Mbit/s and 100 ms the first two terms are 18% too short for an all-reduce of 3.5 MB
(docs/wan.md). TCP may not send a whole message at once. It may have `window` bytes in flight, which double with each
round trip in slow start, and halve with each retransmission timeout that a connection is idle (RFC 2861). So a message
that follows a second of computing begins with a small window, and waits for acknowledgements:

    ramp(m) = Σ over round trips k of max(0, RTT − 8·window·2^k / rate), while fewer than m bytes were sent

Loss has two effects. It bounds the rate of congestion controls that take loss for congestion, and what is lost shortly
before the end of a message arrives after it: a packet comes a round trip after its turn, or two if it is lost again.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Congestion = Literal["cubic", "reno", "bbr"]

OVERHEAD = 0.065
"""h: headers of IP and TCP, acknowledgements and framing, as a part of the bytes that a program sends."""
SEGMENT_BYTES = 1448
INITIAL_WINDOW_BYTES = 10 * SEGMENT_BYTES
"""RFC 6928. An idle connection never has less."""
TIMEOUT_OVER_RTT = 0.2
"""Linux's least variance in a retransmission timeout, in seconds: the timeout is the round trip and this."""
DOUBLINGS_MAX = 40
HALVINGS_MAX = 60
CUBIC_SCALE = 0.4
CUBIC_DECREASE = 0.7


def wire_bits(size_bytes: float) -> float:
    """Bits that a message of this size occupies a line with."""
    return 8 * size_bytes * (1 + OVERHEAD)


def transfer_s(
    size_bytes: ArrayLike,
    rtt_s: ArrayLike,
    rate_bits_s: ArrayLike,
    *,
    loss: float = 0.0,
    congestion: Congestion = "cubic",
    idle_s: ArrayLike = 0.0,
) -> Floats:
    """Seconds until the last byte of a message has arrived. Arguments broadcast.

    idle_s: how long the connection was idle before the message; 0: in use, infinity: new.
    """
    size, rtt = np.asarray(size_bytes, np.float64), np.asarray(rtt_s, np.float64)
    rate = achieved_bits_s(rate_bits_s, rtt, loss, congestion)
    window = window_bytes(size, rtt, rate, idle_s)
    return np.asarray(
        rtt / 2 + 8 * size * (1 + OVERHEAD) / rate + ramp_s(size, rtt, rate, window) + recovery_s(size, rtt, rate, loss)
    )


def achieved_bits_s(rate_bits_s: ArrayLike, rtt_s: ArrayLike, loss: float, congestion: Congestion) -> Floats:
    """The rate of a long transfer, where a share `loss` of all packets is lost.

    Reno: 1.22·segment/(RTT·√p) (Mathis et al., The Macroscopic Behavior of the TCP Congestion Avoidance Algorithm,
    1997). CUBIC: RFC 9438, section 5.1, and never less than Reno. BBR sends on at the line's rate.
    """
    rate = np.asarray(rate_bits_s, np.float64)
    if not loss:
        return rate
    rate = rate * (1 - loss)
    if congestion == "bbr":
        return rate
    rtt = np.maximum(np.asarray(rtt_s, np.float64), 1e-9)
    segments = np.full_like(rtt, np.sqrt(1.5 / loss))
    if congestion == "cubic":
        factor = (CUBIC_SCALE * (3 + CUBIC_DECREASE) / (4 * (1 - CUBIC_DECREASE))) ** 0.25
        segments = np.maximum(segments, factor * (rtt / loss) ** 0.75)
    return np.minimum(rate, 8 * SEGMENT_BYTES * segments / rtt)


def window_bytes(size_bytes: ArrayLike, rtt_s: ArrayLike, rate_bits_s: ArrayLike, idle_s: ArrayLike) -> Floats:
    """Bytes that a connection may have in flight when a message begins, if earlier messages had the same size.

    Those have opened the window to their size, or to what the line holds in a round trip. Idleness closes it.
    """
    rtt = np.asarray(rtt_s, np.float64)
    opened = np.minimum(size_bytes, np.asarray(rate_bits_s, np.float64) * rtt / 8)
    timeouts = np.floor(np.asarray(idle_s, np.float64) / (rtt + TIMEOUT_OVER_RTT))
    return np.asarray(np.maximum(INITIAL_WINDOW_BYTES, opened * 0.5 ** np.minimum(timeouts, HALVINGS_MAX)))


def ramp_s(size_bytes: ArrayLike, rtt_s: ArrayLike, rate_bits_s: ArrayLike, window: ArrayLike) -> Floats:
    """Time in which a message waits for acknowledgements while its window doubles with each round trip."""
    size, rtt, rate = (np.asarray(value, np.float64) for value in (size_bytes, rtt_s, rate_bits_s))
    size, rtt, rate, flight = np.broadcast_arrays(size, rtt, rate, np.asarray(window, np.float64))
    waited, sent, flight = np.zeros(flight.shape), np.zeros(flight.shape), flight.copy()
    for _ in range(DOUBLINGS_MAX):
        sent += flight
        idle = np.where(sent < size, rtt - 8 * flight / rate, 0.0)
        if not np.any(idle > 0):
            break
        waited += np.maximum(idle, 0.0)
        flight *= 2
    return waited


def recovery_s(size_bytes: ArrayLike, rtt_s: ArrayLike, rate_bits_s: ArrayLike, loss: float) -> Floats:
    """The mean time by which lost packets delay a message.

    A packet that is lost x seconds before the end delays it by RTT − x, and one lost earlier by nothing: it is sent
    again while the message goes on. The last loss decides. Its x is distributed exponentially, with the mean time
    between two losses. A packet of the last two round trips that is lost twice adds a round trip.
    """
    size, rtt, rate = (np.asarray(value, np.float64) for value in (size_bytes, rtt_s, rate_bits_s))
    if not loss:
        return np.zeros(np.broadcast_shapes(size.shape, rtt.shape, rate.shape))
    size = np.maximum(size, SEGMENT_BYTES)
    between = 8 * SEGMENT_BYTES / (rate * loss)
    last = np.minimum(rtt, 8 * size / rate)  # the losses that can delay the end
    none = np.exp(-last / between)
    once = rtt * (1 - none) - between + (last + between) * none
    packets = np.minimum(size, 2 * rate * rtt / 8) / SEGMENT_BYTES
    return np.asarray(once + rtt * (1 - (1 - loss**2) ** packets))
