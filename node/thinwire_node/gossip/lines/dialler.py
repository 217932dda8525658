"""Opens a direct line to a peer that listens, and trusts only the peer that the coordinator named."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import grpc

from thinwire_common import heartbeat
from thinwire_common.reach.errors import Unreachable
from thinwire_common.reach.grpc_target import grpc_target
from thinwire_common.reach.happy_eyeballs import Refusal
from thinwire_common.reach.hosts import split_address
from thinwire_common.reach.preflight import find_way
from thinwire_common.within import Within
from thinwire_node.gossip.lines.stream import PARCEL_BYTES_MAX, PROOF_BYTES_MAX, Wire, parse, proof_parcel, reason_in
from thinwire_node.limits.throttle import Throttle, relayed
from thinwire_proto import limits
from thinwire_proto.errors import ConfigError, PayloadError
from thinwire_proto.identity.authority import PEER
from thinwire_proto.identity.keys import PublicKey, SecretKey
from thinwire_proto.wire import service_pb2 as pb

METHOD = f"/{pb.DESCRIPTOR.services_by_name['Peer'].full_name}/Exchange"
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", PARCEL_BYTES_MAX),
    *heartbeat.CLIENT_OPTIONS,
    ("grpc.use_local_subchannel_pool", 1),  # a line has a connection of its own
)
Opened = Callable[[Wire, pb.Parcel], Awaitable[str]]
"""Has a line until it ends, and returns why. Takes its wire and the first parcel of the peer."""


class DialFailed(Exception):
    """There is no direct line to the peer now. The text says why."""


class CallWire:
    """The client's end of a call."""

    def __init__(self, call: Any, channel: grpc.aio.Channel) -> None:
        self._call = call
        self._channel = channel
        self._closing: asyncio.Future[None] | None = None

    async def read(self) -> bytes | None:
        data = await self._call.read()
        return None if data is grpc.aio.EOF else cast(bytes, data)

    async def write(self, data: bytes) -> None:
        await self._call.write(data)

    def cut(self) -> None:
        self._closing = asyncio.ensure_future(self._channel.close())


async def dial(
    address: str,
    peer: PublicKey,
    key: SecretKey,
    contract_hash: bytes,
    refusal: Refusal,
    opened: Opened,
    throttle: Throttle | None = None,
) -> str:
    """Have a direct line to a peer until it ends. Returns why it has. Raises DialFailed if there was none.

    address: HOST:PORT. refusal: of addresses that this node does not connect to. throttle: paces the line, if the owner
    limits the traffic."""
    try:
        host, port = split_address(address)
        way = await find_way(host, port, peer.fingerprint, public_tls=False, party=PEER, refusal=refusal)
    except (Unreachable, ConfigError, ValueError) as error:
        raise DialFailed(str(error)) from None
    target, more = grpc_target(way, address, public_tls=False)
    credentials = grpc.ssl_channel_credentials(way.roots)
    relay, target, more = await relayed(throttle, way, target, more)
    async with relay, grpc.aio.secure_channel(target, credentials, options=[*CHANNEL_OPTIONS, *more]) as channel:
        call: Any = channel.stream_stream(METHOD)()
        wire = CallWire(call, channel)
        try:
            async with Within(limits.HANDSHAKE_S):
                first = await _proved(wire, peer, key, contract_hash)
        except asyncio.TimeoutError:
            raise DialFailed(f"the peer has not taken the line within {limits.HANDSHAKE_S:g} s") from None
        except (PayloadError, grpc.RpcError, grpc.aio.BaseError) as error:
            raise DialFailed(reason_in(error) or "") from None
        try:
            return await opened(wire, first)
        finally:
            call.cancel()


async def _proved(wire: CallWire, peer: PublicKey, key: SecretKey, contract_hash: bytes) -> pb.Parcel:
    """Answer the challenge. Returns the peer's next parcel, which says that it takes the line."""
    challenge = parse(await wire.read() or b"", PROOF_BYTES_MAX)
    await wire.write(proof_parcel(key, contract_hash, peer, challenge).SerializeToString())
    return parse(await wire.read() or b"")
