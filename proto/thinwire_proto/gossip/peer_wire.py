"""Messages of an edge on the wire: a protobuf header, and the body in parts.

The sender signs the header in its canonical bytes, contract, both nodes and the body's hash. So whoever hands a message
on can neither alter nor misdirect it, and its number keeps it from being repeated.
"""

from __future__ import annotations

import hashlib
from dataclasses import fields, replace

import msgpack

from thinwire_proto.errors import PayloadError
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.codec import make_codec
from thinwire_proto.gossip.message import Message
from thinwire_proto.identity import statements
from thinwire_proto.wire import service_pb2 as pb

CODEC_BYTES_MAX = 32
FIELDS = tuple(field.name for field in fields(Message) if field.name != "body")
"""Of a message, in their order; a header has the same."""
NUMBER_MAX = 1 << 53
"""Of a topology, an iteration or a sequence number."""


def body_bytes_max(layout: TileLayout, codec: str) -> int:
    """The largest body of a run whose contract names this codec; a snapshot is dense."""
    return max(make_codec(name, layout).bytes_max for name in ("dense", codec))


def header_of(message: Message) -> pb.PeerHeader:
    """The header, without its signature."""
    return pb.PeerHeader(**dict(zip(FIELDS, message.plain(), strict=False)), body_bytes=len(message.body))


def check_header(header: pb.PeerHeader, bytes_max: int) -> None:
    """Check a header before its body is read. bytes_max: `body_bytes_max`. Raises PayloadError."""
    if header.body_bytes > bytes_max:
        raise PayloadError(f"a message of {header.body_bytes} bytes is announced; this contract allows {bytes_max}")
    if len(header.codec.encode()) > CODEC_BYTES_MAX:
        raise PayloadError(f"the name of a codec has at most {CODEC_BYTES_MAX} bytes")
    numbers = (header.topology, header.iteration, header.sequence, header.acknowledged)
    if max(numbers) > NUMBER_MAX or not (header.sequence and header.topology):
        raise PayloadError(f"a message has impossible numbers: topology, iteration, sequence, acknowledged {numbers}")


def message_of(header: pb.PeerHeader, body: bytes) -> Message:
    """The message of a checked header and its whole body."""
    return Message(**{name: getattr(header, name) for name in FIELDS}, body=body)


def statement_of(contract_hash: bytes, source: str, target: str, message: Message) -> bytes:
    """The bytes that the sender signs. source, target: node ids."""
    body_hash = hashlib.sha256(message.body).digest()
    return statements.message(contract_hash, source.encode(), target.encode(), _canonical(message), body_hash)


def message_hash(message: Message) -> bytes:
    """SHA-256 of header and body, 32 bytes. Not of what it confirms, which depends on when it was sent."""
    body_hash = hashlib.sha256(message.body).digest()
    return hashlib.sha256(_canonical(replace(message, acknowledged=0)) + body_hash).digest()


def _canonical(message: Message) -> bytes:
    return bytes(msgpack.packb([*message.plain()[:-1], len(message.body)], use_bin_type=True))
