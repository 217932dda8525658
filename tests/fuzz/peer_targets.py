"""Targets: the header of a peer's message with its body, and the body of a beat's row."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from fuzz.gossip_targets import SMALL
from fuzz.messages import damage_of
from fuzz.mutations import damage_msgpack
from fuzz.target import Target
from thinwire_node.gossip.lines.line import Framing
from thinwire_node.gossip.lines.stream import PROOF_BYTES_MAX, parse, proof_parcel, proved
from thinwire_proto.errors import PayloadError
from thinwire_proto.gossip.consensus import SKETCH_BYTES
from thinwire_proto.gossip.message import SNAPSHOT, Message
from thinwire_proto.gossip.peer_wire import (
    body_bytes_max,
    check_header,
    header_of,
    message_hash,
    message_of,
    statement_of,
)
from thinwire_proto.gossip.reports import Report, SignedReport, decode_reports, encode_reports, sketch_hash
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.parts import FIRST_PART_BYTES, PART_BYTES

HASH = bytes(range(32))
NODE = "0123456789abcdef" * 2


def peer_targets() -> list[Target]:
    return [_header_target(), _reports_target(), _proof_target(), _parcels_target()]


def _header_target() -> Target:
    """A header is checked before its body is read, so a body of the announced size stands for the peer's."""
    largest = body_bytes_max(SMALL, "int8")
    valid = [
        header_of(Message(1, 0, 1, 0, "int8", 7, False, bytes(9))),
        header_of(Message(2, 1 << 40, 99, 98, SNAPSHOT, (1 << 64) - 1, True, bytes(largest))),
    ]

    def read(data: bytes) -> object:
        header = pb.PeerHeader()
        header.ParseFromString(data)
        check_header(header, largest)
        return message_of(header, bytes(header.body_bytes))

    def check(found: object) -> None:
        assert isinstance(found, Message)
        assert len(found.body) <= largest, "body"
        assert len(message_hash(found)) == len(HASH), "hash"
        statement_of(HASH, NODE, NODE[::-1], found)  # its signature can be checked
        header = header_of(found)
        assert message_of(header, found.body) == found, "another message after the wire"

    return Target(
        "peer header",
        read,
        [header.SerializeToString() for header in valid],
        damage_of(pb.PeerHeader),
        check,
        (PayloadError, DecodeError),
    )


def _proof_target() -> Target:
    """The first message of whoever opens a direct line."""
    key, server, challenge = SecretKey(HASH), SecretKey(HASH[::-1]), pb.Parcel(challenge=HASH)
    valid = proof_parcel(key, HASH, server.public, challenge).SerializeToString()

    def read(data: bytes) -> object:
        return proved(HASH, server.public, challenge, parse(data, PROOF_BYTES_MAX))

    def check(found: object) -> None:
        assert found == key.public, "another key than the one that signed"

    return Target("proof of a peer", read, [valid], damage_of(pb.Parcel), check, (PayloadError,))


def _parcels_target() -> Target:
    """A parcel of a peer on a direct line, after one that began a message."""
    key, peer = SecretKey(HASH), SecretKey(HASH[::-1])
    message = Message(1, 0, 1, 0, "int8", 7, False, bytes(FIRST_PART_BYTES + PART_BYTES))
    first, second = Framing(peer, key.public, HASH, 1 << 22).parcels(message)
    (small,) = Framing(peer, key.public, HASH, 1 << 22).parcels(Message(1, 0, 1, 0, "int8", 7, False, bytes(9)))

    def read(data: bytes) -> object:
        framing = Framing(key, peer.public, HASH, 1 << 22)
        framing.read(first)
        return framing.read(parse(data))

    def check(found: object) -> None:
        assert found is None or isinstance(found, Message), "no message"

    valid = [parcel.SerializeToString() for parcel in (second, small, pb.Parcel(begins=True, acknowledged=3))]
    return Target("parcel of a peer", read, valid, damage_of(pb.Parcel), check, (PayloadError,))


def _reports_target() -> Target:
    report = Report(1, 40, HASH, 8, 2.5, 900, 17, sketch_hash(bytes(SKETCH_BYTES)), 32, (3, 5), 0.01)
    signed = SignedReport(NODE, HASH, 1, report, HASH * 2)
    valid = [[signed], [], [signed, SignedReport(NODE[::-1], HASH, 2, Report(2, 0, HASH), HASH * 2)]]

    def check(found: object) -> None:
        assert isinstance(found, list)
        for one in found:
            assert isinstance(one, SignedReport)
            assert len(one.hash) == len(HASH), "hash"

    return Target(
        "beat", decode_reports, [encode_reports(reports) for reports in valid], damage_msgpack, check, (PayloadError,)
    )
