"""A session that a fuzzer joined honestly, so that its damaged calls reach the code behind the door."""

from __future__ import annotations

import asyncio
import os
from random import Random

from fuzz.wire.calls import headers_of, messages_in, prefixed, right
from fuzz.wire.connection import Answer, Connection
from fuzz.wire.frames import block
from support.small import random_sized_votes, random_votes
from thinwire_node.exchange.coordinator.handshake import NONCE_BYTES, prove
from thinwire_proto.contract import Contract, parse_contract
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.codec import encode_votes
from thinwire_proto.wire.negotiation import PROTOCOL
from thinwire_proto.wire.rows import contribution_hash

ANSWER_S = 20.0
OK = 0
HTTPS = b"https"
PAYLOADS_KEPT = 8
"""Valid payloads of a session that are damaged; they take longer to make than to damage."""


class NotJoined(Exception):
    """The coordinator refused an honest session. reason: its word, or the status."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.text)
        self.reason = answer.reason or f"status {answer.status}"


class Session:
    """A session of one node. announced: the newest announcement, while it attends."""

    def __init__(self, key: SecretKey, token: bytes, scheme: bytes = HTTPS) -> None:
        self.key = key
        self.token = token
        self.scheme = scheme
        self.secret = ""
        self.contract: Contract | None = None
        self.layout: TileLayout | None = None
        self.announced = pb.Announcement()
        self._heard = b""
        self._stream = 0
        self._claimed = (0, 0)  # round, and how many samples of its lease
        self._payloads: dict[int, list[bytes]] = {}

    async def join(self, connection: Connection) -> None:
        """Hello and Join. Raises NotJoined."""
        request = await self.join_request(connection)
        answer = await called(connection, "Join", request.SerializeToString(), scheme=self.scheme)
        if answer.status != OK:
            raise NotJoined(answer)
        reply = pb.JoinReply.FromString(messages_in(answer.data)[0])
        self.secret = reply.session
        self.contract = parse_contract(reply.contract)
        self.layout = TileLayout(self.contract.parameters)

    async def join_request(self, connection: Connection) -> pb.JoinRequest:
        """A request with a proof that is right, once."""
        hello = pb.HelloRequest(nonce=os.urandom(NONCE_BYTES)).SerializeToString()
        answer = await called(connection, "Hello", hello, scheme=self.scheme)
        if answer.status != OK:
            raise NotJoined(answer)
        greeting = pb.HelloReply.FromString(messages_in(answer.data)[0])
        return pb.JoinRequest(protocol=PROTOCOL, name="fuzzer", **prove(self.key, self.token, greeting))

    def attend(self, connection: Connection) -> None:
        """Listen to announcements, and so take part in rounds."""
        headers = block(headers_of("/thinwire.v1.Swarm/Attend", self.secret, self.scheme))
        self._heard = b""

        def heard(data: bytes) -> None:
            connection.more_room(self._stream, len(data))
            self._heard += data
            complete = messages_in(self._heard)
            self._heard = self._heard[sum(5 + len(message) for message in complete) :]
            if complete:
                self.announced = pb.Announcement.FromString(complete[-1])

        self._stream, _ = connection.call(headers, [prefixed(b"")], heard=heard)

    def payload(self, rng: Random) -> bytes:
        """A payload that follows the contract and the open round."""
        assert self.layout is not None
        assert self.contract is not None
        k = max(1, self.announced.k)
        kept = self._payloads.setdefault(k, [])
        if len(kept) < PAYLOADS_KEPT:
            make = random_sized_votes if self.contract.demo.magnitude == "tile" else random_votes
            kept.append(encode_votes(make(self.layout, k, rng.randrange(1 << 30)), self.layout))
            return kept[-1]
        return rng.choice(kept)

    def header(self, replica: Replica, fingerprints: dict[int, int]) -> pb.ContributionHeader:
        """A header for the open round and the next sample of its lease, without the payload's size and signature."""
        told = self.announced
        nonce = told.nonces[0] if told.nonces else 0
        if nonce not in fingerprints:
            fingerprints.clear()
            fingerprints[nonce] = replica.fingerprint(nonce)
        before = self._claimed[1] if self._claimed[0] == told.round else 0
        self._claimed = told.round, before + 1
        positions = [position for run in told.lease for position in range(run.start, run.start + run.count)]
        return pb.ContributionHeader(
            term=told.term,
            round=told.round,
            step=told.step,
            base_step=told.step,
            fingerprint=fingerprints[nonce],
            samples=1 if positions else 0,
            trained_through=positions[min(before, len(positions) - 1)] if positions else 0,
            loss=2.5,
            compute_ms=10,
        )

    def sign(self, header: pb.ContributionHeader, payload: bytes) -> None:
        """Complete a header for this payload."""
        assert self.contract is not None
        node = self.key.public.node_id
        name = contribution_hash(self.contract.hash, header.term, header.round, node, payload)
        header.payload_bytes = len(payload)
        header.signature = self.key.sign(statements.contribution(name, header.samples))


async def called(
    connection: Connection, method: str, message: bytes, secret: str = "", scheme: bytes = HTTPS
) -> Answer:
    """Send one right call and wait for its answer. Raises asyncio.TimeoutError."""
    call = right(method, message, secret, scheme)
    stream, answer = connection.call(call.headers, call.body)
    try:
        return await asyncio.wait_for(asyncio.shield(answer), ANSWER_S)
    finally:
        connection.cancel(stream)
