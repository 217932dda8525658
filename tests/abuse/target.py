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
from typing import Any

import grpc

from support.http2_client import WINDOW_DEFAULT, Http2Client
from support.raw_calls import in_session, join
from thinwire_common.reach.errors import Unreachable
from thinwire_common.reach.grpc_target import grpc_target
from thinwire_common.reach.hosts import split_address
from thinwire_common.reach.preflight import Way, find_way
from thinwire_proto.contract import Contract, parse_contract
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.metadata import SESSION
from thinwire_proto.wire.rows import contribution_hash
from thinwire_proto.wire.service_pb2_grpc import SwarmStub

OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
ROUND = pb.Announcement.STATE_ROUND


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
    def member(self, name: str = "hostile") -> Iterator[Joined]:
        """Join as a node of a new identity."""
        with self.channel() as channel:
            key = SecretKey()
            reply = join(SwarmStub(channel), key, self.token, name=name)
            yield Joined(in_session(channel, reply.session), reply.session, parse_contract(reply.contract), key)


def trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


@dataclass(frozen=True)
class Joined:
    """A session. stub: its calls carry the session's secret."""

    stub: Any
    secret: str
    contract: Contract
    key: SecretKey

    @property
    def header(self) -> tuple[bytes, bytes]:
        """For calls of bare HTTP/2."""
        return SESSION.encode(), self.secret.encode()

    def rounds(self) -> Iterator[pb.Announcement]:
        """Attend, and yield the newest round whenever there is a new one. Ends with the connection."""
        newest: queue.Queue[pb.Announcement | None] = queue.Queue()

        def attend() -> None:
            with contextlib.suppress(grpc.RpcError):
                for announcement in self.stub.Attend(pb.AttendRequest()):
                    newest.put(announcement)
            newest.put(None)

        threading.Thread(target=attend, daemon=True).start()
        last = 0
        while (announcement := newest.get()) is not None:
            if newest.empty() and announcement.state == ROUND and announcement.round > last:
                last = announcement.round
                yield announcement

    def part(self, announcement: pb.Announcement, payload: bytes, **fields: Any) -> pb.ContributionPart:
        """A whole contribution, signed, whose header is right but for the fingerprint. `fields` replace those of it."""
        lease = announcement.lease
        right = {
            "term": announcement.term,
            "round": announcement.round,
            "step": announcement.step,
            "base_step": announcement.step,
            "samples": min(1, sum(run.count for run in lease)),
            "trained_through": min((run.start for run in lease), default=0),
            "payload_bytes": len(payload),
        }
        header = pb.ContributionHeader(**(right | fields))
        name = contribution_hash(self.contract.hash, header.term, header.round, self.key.public.node_id, payload)
        header.signature = self.key.sign(statements.contribution(name, header.samples))
        return pb.ContributionPart(header=header, data=payload)
