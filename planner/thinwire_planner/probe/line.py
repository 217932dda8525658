"""Measures the line to a machine that answers probes: each size in both directions, each on a new connection."""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass

from thinwire_planner.probe.messages import DONE, PIECE_BYTES, Direction, Request
from thinwire_planner.timing.fit import SIZES_BYTES, FittedLine, fit
from thinwire_proto.errors import ConfigError
from thinwire_proto.limits import PLAN_PROBE_S

REPEATS = 3


@dataclass(frozen=True)
class MeasuredLine:
    up: FittedLine
    down: FittedLine

    @property
    def rtt_s(self) -> float:
        return min(self.up.rtt_s, self.down.rtt_s)


def measure_line(host: str, port: int, sizes: Iterable[int] = SIZES_BYTES) -> MeasuredLine:
    """Measure and fit. Raises ConfigError, which says what to do."""
    sizes = tuple(sizes)
    try:
        up, down = (
            {size: statistics.median(_once(host, port, way, size) for _ in range(REPEATS)) for size in sizes}
            for way in Direction
        )
    except OSError as error:
        raise ConfigError(
            f"{host}:{port} does not answer probes: {error}; start `thinwire plan --answer 0.0.0.0:{port}` there"
        ) from None
    return MeasuredLine(fit(up), fit(down))


def _once(host: str, port: int, direction: Direction, size: int) -> float:
    """Seconds from the request to the last byte of its answer. Raises OSError."""
    until_s = time.monotonic() + PLAN_PROBE_S
    with socket.create_connection((host, port), timeout=PLAN_PROBE_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        began_s = time.perf_counter()
        connection.sendall(Request(direction, size).encode() + bytes(size if direction is Direction.UP else 0))
        expected = len(DONE) if direction is Direction.UP else size
        while expected:
            connection.settimeout(max(1e-3, until_s - time.monotonic()))
            got = connection.recv(min(expected, PIECE_BYTES))
            if not got:
                raise ConnectionResetError("it closed the connection, as it does with more than 8 at a time")
            expected -= len(got)
        return time.perf_counter() - began_s
