"""An emulated line between a host and the network, without input or output: packets and times in, packets and times
out.

The problem: many kernels have no netem, so a process must delay packets itself. Sleeping for each packet adds up the
scheduler's lateness, and a token bucket that refills on wake-ups lets bursts through. So this module never waits. It
computes for every packet the time at which its last bit leaves the line, from the time of the packet before it:

    start   = max(now, time when the previous packet was out)
    out     = start + size / rate
    arrival = out + delay

A late wake-up then delays one packet once and never accumulates, because the next line uses the computed `arrival`, not
the time of the wake-up. The queue needs no storage either: the waiting bytes are those that the line is still busy
with, (out - now) · rate.

A star has a line up and a line down for each host. Every path between two hosts passes one of each.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from dataclasses import dataclass
from operator import itemgetter

BITS = 8
MEGA = 1_000_000
MTU_BYTES = 1500
DEVICE = "wan0"
"""The network device of a host, at its end of the line."""
IPV4 = 4
DESTINATION_LAST_BYTE = 19  # of an IPv4 header


@dataclass(frozen=True)
class LineQuality:
    """Properties of one direction of a line."""

    rate_mbit: float | None
    """None: unlimited."""
    delay_ms: float
    loss: float
    """Share of packets lost in transit, after they have occupied the line."""
    queue_bytes: int
    """Drop-tail: a packet that does not fit is dropped."""


@dataclass
class PacketCounts:
    """Counts of the packets that were offered to a line."""

    carried: int = 0
    carried_bytes: int = 0
    lost: int = 0
    """At random, as the quality specifies."""
    dropped: int = 0
    """The queue was full."""


class AccessLine:
    """One direction of a line. `now_s` must not decrease from call to call."""

    def __init__(self, quality: LineQuality, seed: int) -> None:
        self.quality = quality
        self.tally = PacketCounts()
        self._bytes_a_second = None if quality.rate_mbit is None else quality.rate_mbit * MEGA / BITS
        self._delay_s = quality.delay_ms / 1000
        self._random = random.Random(seed)
        self._out_s = 0.0  # when the last accepted packet leaves the sender
        self._in_transit: deque[tuple[float, bytes]] = deque()  # by time

    def offer(self, packet: bytes, now_s: float) -> bool:
        """Accept a packet; False if the queue has no space for it."""
        start_s = max(now_s, self._out_s)
        if self._bytes_a_second is not None:
            waiting_bytes = (start_s - now_s) * self._bytes_a_second
            if waiting_bytes + len(packet) > self.quality.queue_bytes:
                self.tally.dropped += 1
                return False
            start_s += len(packet) / self._bytes_a_second
        self._out_s = start_s
        if self._random.random() < self.quality.loss:
            self.tally.lost += 1
            return True
        self.tally.carried += 1
        self.tally.carried_bytes += len(packet)
        arrival_s = self._out_s + self._delay_s
        self._in_transit.append((arrival_s, packet))
        return True

    def due(self, now_s: float) -> list[tuple[float, bytes]]:
        """The packets that have arrived by now, with their arrival times, in order."""
        found = []
        while self._in_transit and self._in_transit[0][0] <= now_s:
            found.append(self._in_transit.popleft())
        return found

    @property
    def next_s(self) -> float | None:
        """Arrival time of the next packet."""
        return self._in_transit[0][0] if self._in_transit else None


class StarTopology:
    """A line up and a line down for each host. The address of host i ends in i + 1."""

    def __init__(self, up: list[LineQuality], down: list[LineQuality], seed: int) -> None:
        self.up = [AccessLine(quality, seed + 2 * number) for number, quality in enumerate(up)]
        self.down = [AccessLine(quality, seed + 2 * number + 1) for number, quality in enumerate(down)]

    def offer(self, source: int, packet: bytes, now_s: float) -> None:
        """Accept a packet from a host. Drops packets that are not IPv4, or not for a host of the star."""
        if self._destination(packet) is not None:
            self.up[source].offer(packet, now_s)

    def due(self, now_s: float) -> list[tuple[float, int, bytes]]:
        """The packets that have arrived at their hosts by now: (arrival time, host, packet)."""
        for arrival_s, packet in heapq.merge(*(line.due(now_s) for line in self.up), key=itemgetter(0)):
            destination = self._destination(packet)
            assert destination is not None
            self.down[destination].offer(packet, arrival_s)
        return [
            (arrival_s, host, packet) for host, line in enumerate(self.down) for arrival_s, packet in line.due(now_s)
        ]

    @property
    def next_s(self) -> float | None:
        """Time of the next event."""
        return min((line.next_s for line in (*self.up, *self.down) if line.next_s is not None), default=None)

    def _destination(self, packet: bytes) -> int | None:
        if len(packet) <= DESTINATION_LAST_BYTE or packet[0] >> 4 != IPV4:
            return None
        host = packet[DESTINATION_LAST_BYTE] - 1
        return host if 0 <= host < len(self.down) else None
