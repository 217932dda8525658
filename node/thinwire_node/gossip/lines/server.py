"""The port on which a node listens for its peers. Opt-in: see `--peers`.

A caller is a stranger until it has signed a challenge. Until then it costs at most a connection, a call and a kibibyte,
for HANDSHAKE_S, and the number of each is bounded. If all calls of strangers are taken, the oldest gives way. Peers
that find no room use the relay.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timezone
from typing import Any

import grpc
from grpc.aio import ServicerContext

from thinwire_common import heartbeat
from thinwire_common.grpc_server import following, path_safe_server
from thinwire_common.tcp import shut_down_connection
from thinwire_common.within import Within
from thinwire_node.gossip.lines.stream import PARCEL_BYTES_MAX, PROOF_BYTES_MAX, Wire, challenge_parcel, parse, proved
from thinwire_node.peer_settings import bind_host, cannot_listen
from thinwire_proto import limits
from thinwire_proto.errors import PayloadError
from thinwire_proto.identity.authority import PEER
from thinwire_proto.identity.certificates import LEAF_LASTS, RENEW_BEFORE, Certificate, new_authority, new_leaf
from thinwire_proto.identity.keys import PublicKey, SecretKey
from thinwire_proto.wire import service_pb2 as pb

log = logging.getLogger("thinwire.node")

SERVICE = pb.DESCRIPTOR.services_by_name["Peer"].full_name
CONNECTIONS_OF_STRANGERS = 64
CONNECTIONS_A_PEER = 2
"""One in use, and one that the other end may not have given up yet."""
STREAMS_A_CONNECTION = 2
METADATA_BYTES_MAX = 4 << 10
STRANGERS_MAX = 32
"""Calls whose caller has not proved who he is."""
STRANGER = "it does not have the topology yet in which the caller is its peer"
SLOW = "the first parcel of a line has to come at once"
FAILED = "this node could not have the line; its log says why; try again later"

Accept = Callable[[PublicKey, Wire], Awaitable[bool]]
"""Has a line that a peer has opened until it ends. Returns False at once if the key is no peer's."""
Context = ServicerContext[Any, Any]


class ContextWire:
    """The server's end of a call."""

    def __init__(self, requests: AsyncIterator[bytes], context: Context) -> None:
        self._requests = requests
        self._messages: AsyncIterator[bytes] | None = None  # gRPC's iterator must be awaited once it exists
        self._context = context

    async def read(self) -> bytes | None:
        self._messages = self._messages or aiter(self._requests)
        return await anext(self._messages, None)

    async def write(self, data: bytes) -> None:
        await self._context.write(data)

    def cut(self) -> None:
        shut_down_connection(self._context.peer())


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


class PeerCertificate:
    """The TLS certificate of the port, kept in memory: peers check the node's key in it, and nothing that lasts longer.

    now: the time of day, in UTC."""

    def __init__(self, key: SecretKey, now: Callable[[], datetime] = utc_now) -> None:
        self._key = key
        self._now = now
        self._lock = threading.Lock()  # gRPC asks in threads of its own
        self._made_at = now()
        self._newest = _made(key, self._made_at)

    def current(self) -> Certificate:
        """The newest certificate. A new one is made when it is about to end, or if the clock was wrong before."""
        with self._lock:
            now = self._now()
            if not self._made_at <= now < self._made_at + LEAF_LASTS - RENEW_BEFORE:
                self._made_at, self._newest = now, _made(self._key, now)
            return self._newest


def _made(key: SecretKey, now: datetime) -> Certificate:
    return new_leaf(new_authority(now), key, [], now, PEER.server_name)


class PeerServer:
    """key: this node's. peers_max: nodes of the run. accept: see `Accept`; before it is set, everybody is refused.

    handshake_s: for a stranger to prove who he is. refusal_pause_s: before a refusal, to slow whoever ignores it."""

    def __init__(
        self,
        key: SecretKey,
        contract_hash: bytes,
        peers_max: int,
        handshake_s: float = limits.HANDSHAKE_S,
        refusal_pause_s: float = limits.REFUSAL_PAUSE_S,
    ) -> None:
        self.accept: Accept | None = None
        self.port = 0
        self._key = key
        self._contract_hash = contract_hash
        self._handshake_s = handshake_s
        self._refusal_pause_s = refusal_pause_s
        self._certificate = PeerCertificate(key)
        self._strangers: dict[Within, None] = {}  # the oldest first
        self._failure_told: float | None = None
        self.connections_max = CONNECTIONS_A_PEER * peers_max + CONNECTIONS_OF_STRANGERS
        self._server = path_safe_server(
            options=_options(self.connections_max, handshake_s),
            maximum_concurrent_rpcs=STREAMS_A_CONNECTION * self.connections_max,
        )
        handler: Any = grpc.stream_stream_rpc_method_handler(self._exchange)
        self._server.add_registered_method_handlers(SERVICE, {"Exchange": handler})

    async def start(self, host: str, port: int) -> None:
        """Listen. host: at which peers reach this node; empty: it is not known. Raises ConfigError."""
        where = f"{bind_host(host)}:{port}"
        try:
            self.port = self._server.add_secure_port(where, following(self._certificate.current))
        except RuntimeError:
            self.port = 0
        if not self.port:
            raise cannot_listen(host, port)
        await self._server.start()

    async def stop(self) -> None:
        """Stop listening, and end all lines."""
        with contextlib.suppress(asyncio.TimeoutError):  # gRPC was seen to wait for ever; a node that leaves does not
            async with Within(limits.SHUTDOWN_GRACE_S):
                await self._server.stop(0)

    @property
    def strangers(self) -> int:
        """Calls whose caller has not proved who he is."""
        return len(self._strangers)

    async def _exchange(self, requests: AsyncIterator[bytes], context: Context) -> None:
        wire = ContextWire(requests, context)
        refused: tuple[grpc.StatusCode, str] | None = None
        try:
            key = await self._prove(wire)
            if self.accept is None or not await self.accept(key, wire):
                refused = grpc.StatusCode.PERMISSION_DENIED, STRANGER
        except PayloadError as error:
            refused = grpc.StatusCode.UNAUTHENTICATED, str(error)
        except asyncio.TimeoutError:
            refused = grpc.StatusCode.DEADLINE_EXCEEDED, SLOW
        except grpc.aio.BaseError:
            return  # the other end is gone
        except Exception as error:  # noqa: BLE001 - the boundary of a call: gRPC would send the text to the peer
            self._tell_failure(error)
            refused = grpc.StatusCode.INTERNAL, FAILED
        if refused is not None:
            await asyncio.sleep(self._refusal_pause_s)
            await context.abort(*refused)

    async def _prove(self, wire: ContextWire) -> PublicKey:
        """The key of the other end. Raises PayloadError, or TimeoutError if it is silent for too long."""
        if len(self._strangers) >= STRANGERS_MAX:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.end()
        limit = Within(self._handshake_s)
        self._strangers[limit] = None
        try:
            async with limit:
                challenge = challenge_parcel()
                await wire.write(challenge.SerializeToString())
                answer = parse(await wire.read() or b"", PROOF_BYTES_MAX)
            return proved(self._contract_hash, self._key.public, challenge, answer)
        finally:
            self._strangers.pop(limit, None)

    def _tell_failure(self, error: Exception) -> None:
        now = asyncio.get_running_loop().time()
        if self._failure_told is None or now - self._failure_told >= limits.FAILURE_TOLD_AGAIN_S:
            self._failure_told = now
            log.error("a line of a peer failed: %s", error, exc_info=error)


def _options(connections_max: int, handshake_s: float) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),  # otherwise two nodes could share a port unnoticed
        ("grpc.max_allowed_incoming_connections", connections_max),
        ("grpc.server_handshake_timeout_ms", _ms(handshake_s)),
        ("grpc.max_connection_idle_ms", _ms(handshake_s)),
        ("grpc.max_concurrent_streams", STREAMS_A_CONNECTION),
        ("grpc.max_receive_message_length", PARCEL_BYTES_MAX),
        ("grpc.max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
        *heartbeat.SERVER_OPTIONS,
    ]


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
