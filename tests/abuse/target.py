"""The target of the attacks: a coordinator's port, as a stranger and as a node that has joined."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import grpc

from support.http2_client import WINDOW_DEFAULT, Http2Client
from support.raw_node import ROUND, JoinedNode
from thinwire_common.reach.errors import Unreachable
from thinwire_common.reach.grpc_target import grpc_target
from thinwire_common.reach.hosts import split_address
from thinwire_common.reach.preflight import Way, find_way
from thinwire_proto.wire import service_pb2 as pb

OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
AGAIN_S = 1.0
"""Between two attempts to join, while too many joins from this network are refused."""


@dataclass
class Target:
    """address: HOST:PORT. token: of an invite; empty without one. pages: HOST:PORT of the pages, which have HTTPS.

    stop: set when the attack shall end. sent: what the attack has done so far, by name."""

    address: str
    token: bytes = b""
    pages: tuple[str, ...] = ()
    stop: threading.Event = field(default_factory=threading.Event)
    sent: dict[str, int] = field(default_factory=dict)
    began: Callable[[], None] = lambda: None
    """Called when the first thing has been sent."""
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def count(self, what: str) -> None:
        with self._counting:
            if not self.sent:
                self.began()
            self.sent[what] = self.sent.get(what, 0) + 1

    def channel(self) -> grpc.Channel:
        """A connection of its own, with the coordinator's authority as the only root."""
        if self.way is None:
            return grpc.insecure_channel(self.address, options=OWN_CONNECTION)
        target, more = grpc_target(self.way, self.address, public_tls=False)
        return grpc.secure_channel(target, grpc.ssl_channel_credentials(self.way.roots), (*OWN_CONNECTION, *more))

    def raw(self, window: int = WINDOW_DEFAULT) -> Http2Client:
        """A connection of bare HTTP/2, which trusts anybody."""
        return Http2Client(self.address, None if self.way is None else trusting(), window)

    @cached_property
    def way(self) -> Way | None:
        """The way to the coordinator over TLS; None if it speaks plain text."""
        host, port = split_address(self.address)
        try:
            return asyncio.run(find_way(host, port, None, public_tls=False))
        except Unreachable:
            return None

    @contextlib.contextmanager
    def member(self) -> Iterator[JoinedNode]:
        """Join as a node of a new identity, once the coordinator lets a node of this network join."""
        with self.channel() as channel:
            yield self._joined(channel)

    def _joined(self, channel: grpc.Channel) -> JoinedNode:
        while True:
            try:
                return JoinedNode(channel, self.token)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED or self.stop.wait(AGAIN_S):
                    raise


def trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


def rounds(member: JoinedNode) -> Iterator[pb.Announcement]:
    """Attend, and yield the newest round whenever there is a new one. Ends with the connection."""
    newest: queue.Queue[pb.Announcement | None] = queue.Queue()

    def attend() -> None:
        with contextlib.suppress(grpc.RpcError):
            for announcement in member.attend():
                newest.put(announcement)
        newest.put(None)

    threading.Thread(target=attend, daemon=True).start()
    last = 0
    while (announcement := newest.get()) is not None:
        if newest.empty() and announcement.state == ROUND and announcement.round > last:
            last = announcement.round
            yield announcement
