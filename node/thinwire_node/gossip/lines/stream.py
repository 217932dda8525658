"""A direct line: the proof that opens it, and parcels in both directions over one call, until either end or the network
ends it.

The server has proved who it is by its certificate, which the other end checks first (`dialler`). Its first parcel has a
challenge. The other end signs it, with the contract and the server's key, so that the proof opens no other line.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Protocol

import grpc
from google.protobuf.message import DecodeError
from grpc.aio import AioRpcError

from thinwire_common.traffic import Traffic
from thinwire_common.within import Within
from thinwire_node.runtime import together
from thinwire_proto.clean_text import clean_text
from thinwire_proto.errors import PayloadError
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import KEY_BYTES, SIGNATURE_BYTES, PublicKey, SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.parts import PART_BYTES_MAX

CHALLENGE_BYTES = 32
PROOF_BYTES_MAX = 1 << 10
"""Of a message of an end that has not proved who it is."""
PARCEL_BYTES_MAX = PART_BYTES_MAX + (4 << 10)
"""A part of a body, and a header."""


def parse(data: bytes, bytes_max: int = PARCEL_BYTES_MAX) -> pb.Parcel:
    """Read a parcel. Raises PayloadError."""
    if len(data) > bytes_max:
        raise PayloadError(f"a parcel of {len(data)} bytes came; at most {bytes_max} may come here")
    try:
        return pb.Parcel.FromString(data)
    except DecodeError:
        raise PayloadError("what came is no parcel") from None


def challenge_parcel() -> pb.Parcel:
    """The first parcel of the server."""
    return pb.Parcel(challenge=secrets.token_bytes(CHALLENGE_BYTES))


def proof_parcel(key: SecretKey, contract_hash: bytes, server: PublicKey, challenge: pb.Parcel) -> pb.Parcel:
    """The answer to a challenge. Raises PayloadError if it is none."""
    if len(challenge.challenge) != CHALLENGE_BYTES:
        raise PayloadError(f"the peer begins without a challenge of {CHALLENGE_BYTES} bytes")
    signature = key.sign(statements.peer(contract_hash, server.data, challenge.challenge))
    return pb.Parcel(proof=pb.PeerProof(public_key=key.public.data, signature=signature))


def proved(contract_hash: bytes, server: PublicKey, challenge: pb.Parcel, answer: pb.Parcel) -> PublicKey:
    """The key of the other end. Raises PayloadError if it has not proved that it has one."""
    key, signature = PublicKey(answer.proof.public_key), answer.proof.signature
    if len(key.data) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        raise PayloadError("the first parcel of a line has a public key and a signature")
    if not key.verifies(signature, statements.peer(contract_hash, server.data, challenge.challenge)):
        raise PayloadError("the challenge is not signed by that key, for this node and this run")
    return key


DIRECT = "direct"
"""The label of direct lines in figures."""


class Wire(Protocol):
    """One end of the call."""

    async def read(self) -> bytes | None:
        """The next message; None after the last one."""

    async def write(self, data: bytes) -> None:
        """Send a message, once the other end has room for it."""

    def cut(self) -> None:
        """End the connection, although the other end takes nothing."""


class Stream:
    """next_parcel: what to send now, or None. take: takes a parcel; raises PayloadError if the peer cannot have sent
    it, which ends the line. accept_s: for the peer to take a parcel. traffic: counts what goes over the wire."""

    def __init__(
        self,
        wire: Wire,
        next_parcel: Callable[[], pb.Parcel | None],
        take: Callable[[pb.Parcel], None],
        accept_s: float,
        traffic: Traffic,
    ) -> None:
        self._wire = wire
        self._next_parcel = next_parcel
        self._take = take
        self._accept_s = accept_s
        self._traffic = traffic
        self._changed = asyncio.Event()
        self._closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        """There may be something to send."""
        self._changed.set()

    def close(self, why: str) -> None:
        """End the line."""
        if not self._closed.done():
            self._closed.set_result(why)

    async def run(self) -> str:
        """Exchange parcels until the line ends. Returns why it has."""
        async with together(self._read(), self._write()) as tasks:
            await asyncio.wait((self._closed, *tasks), return_when=asyncio.FIRST_COMPLETED)
            return next(reason_of(one) for one in (self._closed, *tasks) if one.done())

    async def _read(self) -> str:
        while (data := await self._wire.read()) is not None:
            self._traffic.received.add("parcel", len(data))
            self._traffic.peers_received[DIRECT] += len(data)
            self._take(parse(data))
        return "the peer has ended the line"

    async def _write(self) -> str:
        while True:
            self._changed.clear()
            parcel = self._next_parcel()
            if parcel is None:
                await self._changed.wait()
                continue
            data = parcel.SerializeToString()
            try:
                async with Within(self._accept_s):
                    await self._wire.write(data)
            except asyncio.TimeoutError:
                self._wire.cut()
                return "the peer takes its messages too slowly"
            self._traffic.sent.add("parcel", len(data))
            self._traffic.peers_sent[DIRECT] += len(data)


def reason_of(ended: asyncio.Future[str]) -> str:
    """The reason for the end of a part of a line. Raises what is a fault of this program."""
    if ended.cancelled():
        return "the connection was ended"
    error = ended.exception()
    if error is None:
        return ended.result()
    if (reason := reason_in(error)) is None:
        raise error
    return reason


def reason_in(error: BaseException) -> str | None:
    """An error of a call in words; None if it is a fault of this program."""
    if isinstance(error, PayloadError):
        return str(error)
    if isinstance(error, AioRpcError):
        return clean_text(error.details() or error.code().name.lower())
    if isinstance(error, grpc.aio.BaseError | asyncio.InvalidStateError):  # the latter: a write after the end
        return "the connection broke"
    return None
