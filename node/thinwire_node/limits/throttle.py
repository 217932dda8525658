"""Paces all traffic of a node, and counts it: a relay on this machine between its connections and the network.

gRPC owns its sockets and knows no rate. So while there is a bound, the node connects to a socket of its own, and this
module passes the bytes on: what may not pass yet is not read, and TCP holds the sender back. TLS passes through, end to
end. The kernel's counters say what has passed, with headers, acknowledgements and repetitions; where there are none
(not Linux), they are estimated. A small receive buffer keeps the system from taking more than the rate allows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from thinwire_common.reach.grpc_target import Options
from thinwire_common.reach.preflight import Way
from thinwire_common.tcp import IPV4_BYTES, IPV6_BYTES, TCP_BYTES, TCP_INFO_BYTES, TIMESTAMPS_BYTES, parse_tcp_info
from thinwire_node.limits.limits import Limits
from thinwire_node.limits.month import MonthlyBudget
from thinwire_proto.errors import ConfigError
from thinwire_proto.limits import DIAL_S

BURST_S = 0.05
"""The bucket's capacity, in seconds of its rate."""


class TokenBucket:
    """rate: bytes per second; None: no bound. Bytes are charged after the fact, so the balance may be negative."""

    def __init__(self, rate: float | None, now: float) -> None:
        self.rate = rate
        self._balance = 0.0
        self._at = now

    def set_rate(self, rate: float | None, now: float) -> None:
        """Pace at another rate from now on."""
        self._refill(now)
        self._balance = min(self._balance, 0.0) if rate is not None else 0.0
        self.rate = rate

    def charge(self, count: float, now: float) -> None:
        """Take `count` bytes, which have passed."""
        if self.rate is not None:
            self._refill(now)
            self._balance -= count

    def wait_s(self, now: float) -> float:
        """Seconds until bytes may pass; 0 if they may now."""
        if self.rate is None:
            return 0.0
        self._refill(now)
        return max(0.0, -self._balance / self.rate)

    def _refill(self, now: float) -> None:
        if self.rate is not None:
            self._balance = min(self._balance + (now - self._at) * self.rate, BURST_S * self.rate)
        self._at = now


log = logging.getLogger("thinwire.node")

PIECE_S = 0.02
"""Bytes pass in pieces of so many seconds of the rate."""
PIECE_BYTES_MIN, PIECE_BYTES_MAX = 1448, 1 << 16
BUFFER_S = 0.2
BUFFER_BYTES_MIN, BUFFER_BYTES_MAX = 1 << 12, 1 << 17
"""Bounds on the buffers of a connection, which hold BUFFER_S of the rate. A receive buffer with room fills at the speed
of the line, so a larger one lets more through at once, and then nothing for longer."""
BUFFERS = (socket.SO_SNDBUF, socket.SO_RCVBUF)
ETHERNET_BYTES = 14
SEGMENT_BYTES = 1448
WAIT_S_MAX = 0.5
"""A change of the rate takes effect within so long."""
PREFLIGHT_BYTES = 4000
"""Each way, for the TLS handshake that looks for the coordinator, and for its name; measured."""
BACKLOG = 8
SOCKET_PATH_BYTES_MAX = 103
"""On macOS; Linux takes 107."""


class Throttle:
    """The bounds on the traffic of one node. time_of_day: seconds since the epoch."""

    def __init__(self, limits: Limits, budget: MonthlyBudget, time_of_day: Callable[[], float]) -> None:
        now = time.monotonic()
        self._up, self._down = TokenBucket(limits.max_upload, now), TokenBucket(limits.max_download, now)
        self.budget = budget
        self._time_of_day = time_of_day
        self._loop = asyncio.get_running_loop()
        self._relays: set[asyncio.Task[None]] = set()

    @property
    def is_needed(self) -> bool:
        return not (self._up.rate is None and self._down.rate is None and self.budget.bound is None)

    def take(self, limits: Limits) -> None:
        """Hold these limits from now on."""
        now = time.monotonic()
        self._up.set_rate(limits.max_upload, now)
        self._down.set_rate(limits.max_download, now)
        self.budget.bind(limits.monthly_data, limits.monthly_reset_day)

    def cut(self) -> None:
        for relay in self._relays:
            relay.cancel()

    def charge(self, sent: int, received: int) -> None:
        """Count bytes that have passed, or are about to."""
        now = time.monotonic()
        self._up.charge(sent, now)
        self._down.charge(received, now)
        self.budget.charge(sent + received, self._time_of_day())

    @asynccontextmanager
    async def door(self, host: str, port: int, *, by_port: bool = False) -> AsyncIterator[str]:
        """A target for gRPC, whose connections lead to this IP address and port. Raises ConfigError.

        by_port: the target is HOST:PORT of this machine; else it may be one that this user alone can connect to."""
        with (
            tempfile.TemporaryDirectory(prefix="thinwire-", dir=_short_folder()) as folder,
            _listening(Path(folder), by_port) as door,
        ):
            accepting = asyncio.ensure_future(self._accept(door, host, port))
            try:
                name = door.getsockname()
                yield f"{name[0]}:{name[1]}" if isinstance(name, tuple) else f"unix:{name}"
            finally:
                accepting.cancel()
                await asyncio.gather(accepting, return_exceptions=True)

    async def _accept(self, door: socket.socket, host: str, port: int) -> None:
        while True:
            near, _ = await self._loop.sock_accept(door)
            self._begin(self._connect(near, host, port))

    async def _connect(self, near: socket.socket, host: str, port: int) -> None:
        far = self.make_socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            far.setblocking(False)
            await asyncio.wait_for(self._loop.sock_connect(far, (host, port)), DIAL_S)
        except BaseException:
            far.close()
            near.close()
            raise
        await self._relay(near, far)

    def make_socket(self, family: int) -> socket.socket:
        """A socket that is not connected yet, with buffers that suit the rates."""
        far = socket.socket(family, socket.SOCK_STREAM)
        for buffer, bucket in zip(BUFFERS, (self._up, self._down), strict=True):
            size = (bucket.rate or math.inf) * BUFFER_S
            far.setsockopt(socket.SOL_SOCKET, buffer, int(min(max(size, BUFFER_BYTES_MIN), BUFFER_BYTES_MAX)))
        far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return far

    def through(self, far: socket.socket) -> socket.socket:
        """A socket that leads through this relay to a connected one. For threads that block; the timeout is kept."""
        near, pair = socket.socketpair()
        end = _Near(pair.family, pair.type, pair.proto, pair.detach())
        end.settimeout(far.gettimeout())
        for one in (near, far):
            one.setblocking(False)
        self._loop.call_soon_threadsafe(lambda: self._begin(self._relay(near, far)))
        return end

    def pass_blocking(self, count: int) -> None:
        """Count bytes that a client without such a socket is about to receive, once they may pass."""
        while (wait_s := self._wait_s(self._down)) > 0:
            time.sleep(min(wait_s, WAIT_S_MAX))
        done = threading.Event()

        def charge() -> None:
            try:
                self.charge(*estimated(0, count))
            finally:
                done.set()

        self._loop.call_soon_threadsafe(charge)
        done.wait()

    def _begin(self, relay: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(relay)
        self._relays.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._relays.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.log(
                logging.WARNING if isinstance(error, ConfigError) else logging.DEBUG, "a connection ended: %s", error
            )

    async def _relay(self, near: socket.socket, far: socket.socket) -> None:
        """Pass bytes between two connected sockets until both ends are closed, or one breaks."""
        count = _Counted(far, self.charge)
        held = sum(far.getsockopt(socket.SOL_SOCKET, buffer) for buffer in BUFFERS) + 2 * PIECE_BYTES_MAX
        pumps: list[asyncio.Task[None]] = []
        try:
            self.budget.hold(held, self._time_of_day())
            pumps.append(asyncio.ensure_future(self._pump(near, far, self._up, count)))
            pumps.append(asyncio.ensure_future(self._pump(far, near, self._down, count)))
            await asyncio.gather(*pumps)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            try:
                count.look()
            finally:
                self.budget.release(held)
                for one in (near, far):
                    one.close()

    async def _pump(self, source: socket.socket, sink: socket.socket, bucket: TokenBucket, count: _Counted) -> None:
        up = bucket is self._up
        while True:
            count.look()
            while (wait_s := self._wait_s(bucket)) > 0:
                await asyncio.sleep(min(wait_s, WAIT_S_MAX))
                count.look()
            rate = bucket.rate or math.inf
            size = int(min(max(rate * PIECE_S, PIECE_BYTES_MIN), PIECE_BYTES_MAX))
            data = await self._loop.sock_recv(source, size)
            if not data:
                with contextlib.suppress(OSError):
                    sink.shutdown(socket.SHUT_WR)
                return
            await self._loop.sock_sendall(sink, data)
            count.passed(*((len(data), 0) if up else (0, len(data))))

    def _wait_s(self, bucket: TokenBucket) -> float:
        if self.budget.is_used(self._time_of_day()):
            return WAIT_S_MAX
        return bucket.wait_s(time.monotonic())


class _Near(socket.socket):
    """This end of a relay, for a client that takes it for a TCP connection."""

    def setsockopt(self, level: int, name: int, *value: Any) -> None:
        if level != socket.IPPROTO_TCP:
            super().setsockopt(level, name, *value)


class _Counted:
    """The bytes on the wire of one connection. charge: is told of bytes sent and received."""

    def __init__(self, far: socket.socket, charge: Callable[[int, int], None]) -> None:
        self._far = far
        self._charge = charge
        self._sent = self._received = 0
        self._headers = (IPV6_BYTES if far.family is socket.AF_INET6 else IPV4_BYTES) + ETHERNET_BYTES

    def look(self) -> None:
        """Charge what the kernel has counted since the last look."""
        if sys.platform != "linux":
            return
        try:
            info = self._far.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
        except OSError:  # it is closed
            return
        if (count := parse_tcp_info(info, self._headers)) is not None:
            sent, received = count.sent - self._sent, count.received - self._received
            self._sent, self._received = count.sent, count.received
            if sent or received:
                self._charge(sent, received)

    def passed(self, sent: int, received: int) -> None:
        """Charge bytes where the kernel does not count."""
        if sys.platform != "linux":
            self._charge(*estimated(sent, received))


def estimated(sent: int, received: int) -> tuple[int, int]:
    """Bytes on the wire each way, for so many bytes of payload: with headers, and an acknowledgement for every second
    segment."""
    header = ETHERNET_BYTES + IPV4_BYTES + TCP_BYTES + TIMESTAMPS_BYTES
    out, back = math.ceil(sent / SEGMENT_BYTES), math.ceil(received / SEGMENT_BYTES)
    return sent + header * (out + math.ceil(back / 2)), received + header * (back + math.ceil(out / 2))


def _short_folder() -> str | None:
    """The folder for that of a socket: /tmp if a path below TMPDIR would be too long for the system; None: TMPDIR."""
    path = Path(tempfile.gettempdir(), "thinwire-12345678", "door")
    return "/tmp" if hasattr(socket, "AF_UNIX") and len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX else None


@contextlib.contextmanager
def _listening(folder: Path, by_port: bool) -> Iterator[socket.socket]:
    """A listening socket, in a folder of this user where the system has such."""
    is_unix = hasattr(socket, "AF_UNIX") and not by_port
    door = socket.socket(socket.AF_UNIX if is_unix else socket.AF_INET, socket.SOCK_STREAM)
    with door:
        door.setblocking(False)
        door.bind(str(folder / "door") if is_unix else ("127.0.0.1", 0))
        try:
            door.listen(BACKLOG)
        except OSError as error:
            raise ConfigError(
                f"limits on traffic need a socket of the node's own, and this service does not let it listen "
                f"({error.strerror}): add SystemCallFilter=listen, or take the limits away"
            ) from None
        yield door


async def relayed(
    throttle: Throttle | None, way: Way, target: str, options: Options
) -> tuple[AsyncExitStack, str, Options]:
    """The target and the options of a channel, and what to close after it. They are the given ones without a limit.

    way: the preflight's. Behind a proxy, gRPC believes that the relay is the proxy."""
    relay = AsyncExitStack()
    if throttle is None or not throttle.is_needed:
        return relay, target, options
    throttle.charge(PREFLIGHT_BYTES, PREFLIGHT_BYTES)
    if way.proxy is None:
        return relay, await relay.enter_async_context(throttle.door(*way.peer)), options
    door = await relay.enter_async_context(throttle.door(*way.peer, by_port=True))
    scheme, _, rest = way.proxy.url.partition("://")
    user, at, _ = rest.rpartition("@")
    url = f"{scheme}://{user}{at}{door}"
    return relay, target, tuple((name, url if name == "grpc.http_proxy" else value) for name, value in options)
