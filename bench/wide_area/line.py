"""A line between a host and the rest of the world, without any input or output: packets and the time go in, packets
and times come out.

The problem: a kernel without netem cannot hold a packet back. Sleeping for each packet sums up how late the scheduler
was every time, and a token bucket that refills on wake-ups lets bursts through. So nothing here waits. Every packet
that comes in is given the time at which its last bit leaves the line, worked out from when the packet before it did:

    starts = max(now, when the packet before it was out)
    out    = starts + size / rate
    there  = out + delay

What is late is then late once, and never adds up, because the next line takes a packet in at the time `there` that
was worked out, whenever it was really looked at. The queue needs no storage of its own either: the bytes that wait at
some time are those that the line will still be busy with, (out - now) · rate.

A star is a line up and a line down for each host. Every path between two hosts passes one of each.
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
IPV4 = 4
DESTINATION_LAST_BYTE = 19  # of an IPv4 header


@dataclass(frozen=True)
class Quality:
    """Of one direction of a line."""

    rate_mbit: float | None
    """None: as fast as it comes."""
    delay_ms: float
    loss: float
    """Share of the packets that are lost on the way, after they have taken their time on the line."""
    queue_bytes: int
    """Drop-tail: a packet that does not fit any more is thrown away."""


@dataclass
class Tally:
    """What became of the packets that were offered to a line."""

    carried: int = 0
    carried_bytes: int = 0
    lost: int = 0
    """By chance, as the quality says."""
    dropped: int = 0
    """Because the queue was full."""


class Line:
    """One direction. `now_s` never goes backwards from call to call."""

    def __init__(self, quality: Quality, seed: int) -> None:
        self.quality = quality
        self.tally = Tally()
        self._bytes_a_second = None if quality.rate_mbit is None else quality.rate_mbit * MEGA / BITS
        self._delay_s = quality.delay_ms / 1000
        self._random = random.Random(seed)
        self._out_s = 0.0  # when the last packet that was let in has left the sender
        self._under_way: deque[tuple[float, bytes]] = deque()  # in the order of times: the delay is the same for all

    def offer(self, packet: bytes, now_s: float) -> bool:
        """Take a packet in; False if the queue has no room for it."""
        starts_s = max(now_s, self._out_s)
        if self._bytes_a_second is not None:
            waiting_bytes = (starts_s - now_s) * self._bytes_a_second
            if waiting_bytes + len(packet) > self.quality.queue_bytes:
                self.tally.dropped += 1
                return False
            starts_s += len(packet) / self._bytes_a_second
        self._out_s = starts_s
        if self._random.random() < self.quality.loss:
            self.tally.lost += 1
            return True
        self.tally.carried += 1
        self.tally.carried_bytes += len(packet)
        self._under_way.append((self._out_s + self._delay_s, packet))
        return True

    def due(self, now_s: float) -> list[tuple[float, bytes]]:
        """The packets that are there by now, each with the time at which it was, in the order of times."""
        found = []
        while self._under_way and self._under_way[0][0] <= now_s:
            found.append(self._under_way.popleft())
        return found

    @property
    def next_s(self) -> float | None:
        """When the next packet will be there."""
        return self._under_way[0][0] if self._under_way else None


class Star:
    """A line up and one down for each host. Host i has an address that ends in i + 1."""

    def __init__(self, qualities: list[Quality], seed: int) -> None:
        self.up = [Line(quality, seed + 2 * number) for number, quality in enumerate(qualities)]
        self.down = [Line(quality, seed + 2 * number + 1) for number, quality in enumerate(qualities)]

    def offer(self, source: int, packet: bytes, now_s: float) -> None:
        """A host sends a packet. One that is not IPv4, or for nobody here, is thrown away."""
        if self._destination(packet) is not None:
            self.up[source].offer(packet, now_s)

    def due(self, now_s: float) -> list[tuple[float, int, bytes]]:
        """What has come down by now: (when, the host that it is for, packet)."""
        for there_s, packet in heapq.merge(*(line.due(now_s) for line in self.up), key=itemgetter(0)):
            destination = self._destination(packet)
            assert destination is not None
            self.down[destination].offer(packet, there_s)
        return [(there_s, host, packet) for host, line in enumerate(self.down) for there_s, packet in line.due(now_s)]

    @property
    def next_s(self) -> float | None:
        """When there is something to do next."""
        return min((line.next_s for line in (*self.up, *self.down) if line.next_s is not None), default=None)

    def _destination(self, packet: bytes) -> int | None:
        if len(packet) <= DESTINATION_LAST_BYTE or packet[0] >> 4 != IPV4:
            return None
        host = packet[DESTINATION_LAST_BYTE] - 1
        return host if 0 <= host < len(self.down) else None
