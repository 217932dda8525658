"""The archive of a node in a swarm without a centre: the messages of its edges and the turns that it mixed, in order.

It is a run of msgpack lists, so that it is only ever written at its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgpack

from thinwire_proto.errors import PayloadError
from thinwire_proto.gossip.copies import Message
from thinwire_proto.gossip.iteration import Turn

ARCHIVE_FILE = "messages.archive"
"""Its name in the state directory of the node."""
OWN, THEIRS, MIXED, NUMBER = 0, 1, 2, 3
VERSION = 1
READ_BYTES = 1 << 20
ENTRY_BYTES = 1 << 10
"""Of an entry without the body of its message, at most."""


@dataclass(frozen=True)
class ArchiveHeader:
    """contract: the hash of the run's. node: id of the node whose archive it is."""

    contract: bytes
    node: str


@dataclass(frozen=True)
class ArchivedMessage:
    """whose: OWN or THEIRS. peer: the member number of the edge's other end."""

    whose: int
    peer: int
    message: Message


Entry = ArchivedMessage | Turn | int
"""A message of an edge, a turn that is mixed, or the node's own member number from now on."""


def pack_header(header: ArchiveHeader) -> bytes:
    """The archive's first list."""
    return _packed(["thinwire messages", VERSION, header.contract, header.node])


def pack_message(whose: int, peer: int, message: Message) -> bytes:
    """A message that a node made (OWN), or that came (THEIRS)."""
    return _packed([whose, peer, *message.plain()])


def pack_mixed(turn: Turn) -> bytes:
    """A turn that is mixed."""
    return _packed([MIXED, *turn.plain()])


def pack_number(member: int) -> bytes:
    """The node's own member number."""
    return _packed([NUMBER, member])


def read_archive(file: BinaryIO, body_bytes_max: int) -> tuple[ArchiveHeader, Iterator[Entry]]:
    """The header, and the entries as they are read. body_bytes_max: of a message's body in this run.

    Raises PayloadError, also from the iterator, for what is not an archive. An entry that is cut off ends it."""
    unpacker = msgpack.Unpacker(file, read_size=READ_BYTES, max_buffer_size=body_bytes_max + ENTRY_BYTES + READ_BYTES)
    plain = next(_lists(unpacker), None)
    if plain is None or len(plain) != 4 or plain[0] != "thinwire messages":
        raise PayloadError("it is not an archive of messages")
    if plain[1] != VERSION:
        raise PayloadError(f"it is an archive of version {plain[1]}; this program reads version {VERSION}")
    contract, node = plain[2:]
    if not isinstance(contract, bytes) or not isinstance(node, str):
        raise PayloadError("it is damaged: its header names no contract and no node")
    return ArchiveHeader(contract, node), (_entry(each) for each in _lists(unpacker))


def _packed(plain: list[Any]) -> bytes:
    return bytes(msgpack.packb(plain, use_bin_type=True))


def _lists(unpacker: Any) -> Iterator[list[Any]]:
    while True:
        try:
            plain = unpacker.unpack()
        except msgpack.OutOfData:
            return
        except (ValueError, msgpack.UnpackException) as error:
            raise PayloadError(f"it is damaged: {error}") from None
        if not isinstance(plain, list):
            raise PayloadError("it is damaged: an entry is not a list")
        yield plain


def _entry(plain: list[Any]) -> Entry:
    try:
        kind, *rest = plain
        if kind == MIXED:
            return Turn(*_numbers(rest))
        if kind == NUMBER:
            (number,) = _numbers(rest)
            return int(number)
        peer, *fields = rest
        message = Message(*fields)
    except (TypeError, ValueError):
        raise PayloadError("it is damaged: an entry has other fields than it should") from None
    numbers = (kind, peer, message.topology, message.iteration, message.sequence, message.acknowledged)
    _numbers(numbers)
    if kind not in (OWN, THEIRS) or not isinstance(message.body, bytes) or not isinstance(message.codec, str):
        raise PayloadError("it is damaged: an entry is of no kind that there is")
    return ArchivedMessage(kind, peer, message)


def _numbers(values: Any) -> Any:
    if not all(type(value) is int and value >= 0 for value in values):
        raise PayloadError("it is damaged: an entry has a field that is no number")
    return values
