"""The simulated network between nodes and coordinator: delay, jitter, loss, rate and partition, all from one seed.

The network carries TCP connections. So a lost packet does not lose a message: the message and everything behind it
arrive later. A connection dies when one of its ends dies, or when no heartbeat gets through for LOST_AFTER_S.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import grpc

from thinwire_proto.limits import LOST_AFTER_S

PACKET_BYTES = 1400
RETRANSMIT_LEAST_S = 0.2
"""TCP's minimum retransmission timeout: 0.2 s on Linux (RFC 6298 recommends 1 s)."""


@dataclass(frozen=True)
class Line:
    """One node's access line. rate_bytes_s: 0 for no limit. loss: share of packets lost in each direction."""

    delay_s: float = 0.02
    jitter_s: float = 0.0
    loss: float = 0.0
    rate_bytes_s: float = 0.0


class Network:
    """All lines and connections, by node name.

    blocked: nodes without a connection. uploads_fail: nodes whose contributions fail. rounds_ahead: nodes whose
    contributions claim a later round, and by how many rounds."""

    def __init__(self, randomness: random.Random, line: Line) -> None:
        self._random = randomness
        self.default = line
        self.lines: dict[str, Line] = {}
        self.blocked: set[str] = set()
        self.uploads_fail: set[str] = set()
        self.rounds_ahead: dict[str, int] = {}
        self.connections: dict[str, Connection] = {}
        self.bytes_carried = 0

    def change(self, node: str, **fields: float) -> None:
        self.lines[node] = replace(self.line(node), **fields)

    def line(self, node: str) -> Line:
        return self.lines.get(node, self.default)

    def cut_off(self, node: str) -> None:
        """Block both directions of a node's line. The heartbeat detects it after LOST_AFTER_S."""
        self.blocked.add(node)
        if (connection := self.connections.get(node)) is not None:
            asyncio.get_running_loop().call_later(LOST_AFTER_S, self._notice, node, connection)

    def _notice(self, node: str, connection: Connection) -> None:
        if node in self.blocked:
            connection.die("the heartbeat is not answered")

    def reconnect(self, node: str) -> None:
        self.blocked.discard(node)
        if (connection := self.connections.get(node)) is not None:
            connection.resume()

    def connect(self, node: str) -> Connection:
        self.connections[node] = connection = Connection(self, node)
        return connection

    def travel_s(self, node: str) -> float:
        """The travel time of one packet, including retransmissions."""
        line = self.line(node)
        travel_s = line.delay_s
        if line.jitter_s:
            travel_s += self._random.uniform(0, line.jitter_s)
        pause_s = max(RETRANSMIT_LEAST_S, 3 * line.delay_s)
        while line.loss and self._random.random() < line.loss:
            travel_s += pause_s
            pause_s *= 2
        return travel_s


class Connection:
    """One node's connection. In each direction, messages arrive in the order in which they were sent."""

    def __init__(self, network: Network, node: str) -> None:
        self.node = node
        self.dead: str | None = None
        self._network = network
        self._free_at = {"up": 0.0, "down": 0.0}
        self._arrived_at = {"up": 0.0, "down": 0.0}
        # timers of the same moment fire in any order, so each one takes the message that has waited longest
        self._under_way: dict[str, deque[tuple[Callable[[], None], int]]] = {"up": deque(), "down": deque()}
        self._held: list[tuple[Callable[[], None], str, int]] = []
        self._ends: dict[Callable[[str], None], None] = {}

    def on_death(self, end: Callable[[str], None]) -> None:
        if self.dead is None:
            self._ends[end] = None
        else:
            end(self.dead)

    def forget(self, end: Callable[[str], None]) -> None:
        self._ends.pop(end, None)

    def die(self, why: str) -> None:
        if self.dead is None:
            self.dead = why
            self._held.clear()
            ends, self._ends = list(self._ends), {}
            for end in ends:
                end(why)

    def backlog_s(self, way: str) -> float:
        """The time that the line needs to send the data queued for it."""
        return max(0.0, self._free_at[way] - asyncio.get_running_loop().time())

    def send(self, way: str, size: int, deliver: Callable[[], None]) -> None:
        """Send a message of `size` bytes. Calls `deliver` when it arrives, if it arrives."""
        if self.dead is not None:
            return
        if self.node in self._network.blocked:
            self._held.append((deliver, way, size))
            return
        loop = asyncio.get_running_loop()
        line = self._network.line(self.node)
        begins = max(loop.time(), self._free_at[way])
        self._free_at[way] = begins + (size / line.rate_bytes_s if line.rate_bytes_s else 0.0)
        packets = max(1, size // PACKET_BYTES) if line.loss else 1
        slowest_s = max(self._network.travel_s(self.node) for _ in range(packets))
        self._arrived_at[way] = max(self._arrived_at[way], self._free_at[way] + slowest_s)
        self._network.bytes_carried += size
        self._under_way[way].append((deliver, size))
        loop.call_at(self._arrived_at[way], self._deliver, way)

    def _deliver(self, way: str) -> None:
        deliver, size = self._under_way[way].popleft()
        if self.dead is None:
            if self.node in self._network.blocked:
                self._held.append((deliver, way, size))
            else:
                deliver()

    def resume(self) -> None:
        held, self._held = self._held, []
        for deliver, way, size in held:
            self.send(way, size, deliver)


def lost(why: str) -> grpc.aio.AioRpcError:
    return error_of(grpc.StatusCode.UNAVAILABLE, why)


def error_of(code: grpc.StatusCode, text: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), text)
