"""Target: an archive of messages, as `verify` gets it from a node: read, and its copies and chain repeated."""

from __future__ import annotations

from io import BytesIO
from random import Random

import msgpack
import torch

from fuzz.gossip_targets import CPU, SMALL, small_difference
from fuzz.mutations import damage_bytes, damage_tree
from fuzz.target import Target
from thinwire_proto.errors import PayloadError
from thinwire_proto.gossip.archive import (
    OWN,
    THEIRS,
    ArchiveHeader,
    pack_header,
    pack_message,
    pack_mixed,
    pack_number,
    read_archive,
)
from thinwire_proto.gossip.archive_replay import ArchiveReplay
from thinwire_proto.gossip.copies import Edge
from thinwire_proto.gossip.iteration import Turn
from thinwire_proto.gossip.member import FIRST_TOPOLOGY
from thinwire_proto.gossip.unread import first_sequence

BODY_BYTES_MAX = 1 << 12
TURNS = 4
PEER = 1


def archive_targets() -> list[Target]:
    return [Target("archive", _replay, [_archive()], damage_archive, _check, (PayloadError,))]


def _archive() -> bytes:
    """Of a node that has mixed some turns with one peer."""
    start = torch.zeros(SMALL.parameters)
    base = first_sequence(FIRST_TOPOLOGY)
    ours, theirs = Edge(SMALL, start, CPU, base), Edge(SMALL, start, CPU, base)
    entries = [pack_header(ArchiveHeader(b"c" * 32, "a node")), pack_number(0)]
    for number in range(TURNS):
        when = (FIRST_TOPOLOGY, 2 * number)
        entries.append(pack_message(OWN, PEER, ours.send(when, small_difference(number), "int8")))
        entries.append(pack_message(THEIRS, PEER, theirs.send(when, small_difference(9 + number), "int8")))
        entries.append(pack_mixed(Turn(*when, PEER)))
    return b"".join(entries)


def _replay(data: bytes) -> ArchiveReplay:
    header, entries = read_archive(BytesIO(data), BODY_BYTES_MAX)
    assert isinstance(header.node, str)
    replay = ArchiveReplay(SMALL, torch.zeros(SMALL.parameters))
    for entry in entries:
        replay.take(entry)
    return replay


def _check(found: object) -> None:
    assert isinstance(found, ArchiveReplay)
    assert len(found.head) == 32, "a head is a hash"
    assert all(turn.own and turn.theirs for turn in found.mixed), "a turn was mixed without its messages"


def damage_archive(rng: Random, data: bytes, others: list[bytes]) -> bytes:
    """Change the tree of one of its lists, repeat one or leave one out; or change bytes."""
    if rng.random() < 0.2:
        return damage_bytes(rng, data, others)
    try:
        unpacker = msgpack.Unpacker(BytesIO(data), raw=False, strict_map_key=False)
        lists = list(unpacker)
        for _ in range(rng.choice((1, 1, 2, 3))):
            place = rng.randrange(len(lists))
            if rng.random() < 0.6:
                lists[place] = damage_tree(rng, lists[place])
            elif rng.random() < 0.5:
                lists.insert(rng.randrange(len(lists)), lists[place])
            else:
                del lists[place]
        return b"".join(msgpack.packb(one) for one in lists)
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException):
        return damage_bytes(rng, data, others)
