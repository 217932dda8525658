"""A node's archive of messages repeats its copies and its chain."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from io import BytesIO

import msgpack
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from support.member_world import MemberWorld
from thinwire_proto.contract import Parameter
from thinwire_proto.errors import PayloadError
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.archive import (
    OWN,
    THEIRS,
    ArchivedMessage,
    ArchiveHeader,
    Entry,
    pack_header,
    pack_message,
    pack_mixed,
    pack_number,
    read_archive,
)
from thinwire_proto.gossip.archive_replay import ArchiveReplay
from thinwire_proto.gossip.copies import Message
from thinwire_proto.gossip.iteration import Turn
from thinwire_proto.gossip.member_state import MemberSettings

HEADER = ArchiveHeader(b"c" * 32, "a node")
BODY_BYTES_MAX = 1 << 12


def entries_of(packed: Iterable[bytes]) -> list[Entry]:
    """The entries of an archive, as they are read from its file."""
    file = BytesIO(pack_header(HEADER) + b"".join(packed))
    header, entries = read_archive(file, BODY_BYTES_MAX)
    assert header == HEADER
    return [*entries]


def packed(entry: Entry) -> bytes:
    if isinstance(entry, Turn):
        return pack_mixed(entry)
    if isinstance(entry, int):
        return pack_number(entry)
    return pack_message(entry.whose, entry.peer, entry.message)


def replayed(layout: TileLayout, first: Tensor, entries: Iterable[Entry]) -> ArchiveReplay:
    replay = ArchiveReplay(layout, first)
    for entry in entries:
        replay.take(entry)
    return replay


def first_of(world: MemberWorld) -> Tensor:
    return next(iter(world.nodes.values())).member.state().tensors["first"]


@pytest.fixture(scope="module")
def churn() -> MemberWorld:
    """Eight nodes over lines that lose 5%; some are killed and come back, one dies for good, and one joins."""
    rng = random.Random(3)

    def step(node: int, x: Tensor, iteration: int) -> Tensor:
        generator = torch.Generator().manual_seed(1000 * iteration + node)
        return 0.1 * torch.randn(x.shape, generator=generator)

    world = MemberWorld(
        8, MemberSettings("sign", 1.0, 0, 5.0), lost=0.05, seed=3, step=step, iterations=60, archives=True
    )
    at = 0.0
    for _ in range(8):
        at += rng.uniform(1.0, 5.0)
        victim = rng.choice([0, 1, 2, 3, 4, 6, 7])
        world.at(at, partial(world.kill, victim))
        at += rng.uniform(0.1, 2.0)
        world.at(at, partial(world.restart, victim))
    world.at(20.0, partial(world.kill, 5))
    world.at(27.0, partial(world.forget, 5))
    world.at(34.0, world.join)
    world.run()
    return world


def test_after_kills_losses_and_newcomers_each_archive_leads_through_all_heads_of_its_node(churn: MemberWorld) -> None:
    for node in churn.nodes.values():
        assert node.archive is not None
        replay, heads = ArchiveReplay(churn.layout, first_of(churn)), set()
        for entry in entries_of(node.archive):
            heads.add(replay.head)
            replay.take(entry)
        assert replay.head == node.member.head
        assert set(node.heads.values()) <= heads | {replay.head}
        assert len(replay.mixed) > 20
        assert replay.differences == 0


def test_both_ends_of_a_turn_have_mixed_the_same_two_messages(churn: MemberWorld) -> None:
    replays = [replayed(churn.layout, first_of(churn), entries_of(node.archive or ())) for node in churn.nodes.values()]
    here = {number for replay in replays for number in replay.numbers}
    mixed = {turn for replay in replays for turn in replay.mixed if turn.peer in here}
    alone = [turn for turn in mixed if turn.of_the_peer() not in mixed]
    assert here == churn.nodes.keys()
    assert len(mixed) > 200
    assert len(alone) <= len(churn.nodes)  # the newest turns of edges that a topology has ended


def test_a_message_that_was_altered_is_found(churn: MemberWorld) -> None:
    archive = churn.nodes[0].archive
    assert archive is not None
    entries = entries_of(archive)
    found = tried = 0
    for at, entry in enumerate(entries[:60]):
        if not isinstance(entry, ArchivedMessage) or not entry.message.body:
            continue
        body = bytes([entry.message.body[0] ^ 1]) + entry.message.body[1:]
        altered = ArchivedMessage(entry.whose, entry.peer, replace(entry.message, body=body))
        try:
            replay = replayed(churn.layout, first_of(churn), [*entries[:at], altered, *entries[at + 1 :]])
        except PayloadError:
            found += 1
        else:
            found += replay.head != churn.nodes[0].member.head or not is_mixed(entries, entry)
        tried += 1
    assert found == tried > 30


def is_mixed(entries: list[Entry], message: ArchivedMessage) -> bool:
    return Turn(*message.message.when, message.peer) in entries


def test_a_turn_that_is_left_out_or_mixed_twice_is_found(churn: MemberWorld) -> None:
    archive = churn.nodes[1].archive
    assert archive is not None
    entries, first = entries_of(archive), first_of(churn)
    at = next(at for at, entry in enumerate(entries) if isinstance(entry, Turn))
    without = replayed(churn.layout, first, [*entries[:at], *entries[at + 1 :]])
    assert without.head != churn.nodes[1].member.head
    with pytest.raises(PayloadError, match="mixed without both of its messages"):
        replayed(churn.layout, first, [*entries[: at + 1], entries[at]])


def test_an_archive_that_a_kill_has_cut_ends_before_the_cut(churn: MemberWorld) -> None:
    archive = churn.nodes[0].archive
    assert archive is not None
    whole = b"".join(archive[:10])
    for cut in range(1, len(archive[9]), 7):
        assert entries_of([whole[:-cut]]) == entries_of(archive[:9])


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_with_a_reason(junk: bytes) -> None:
    layout = TileLayout([Parameter(name="x", shape=(64,))])
    for data in (junk, pack_header(HEADER) + junk):
        try:
            _, entries = read_archive(BytesIO(data), BODY_BYTES_MAX)
            replayed(layout, torch.zeros(64), entries)
        except PayloadError:
            continue


@pytest.mark.parametrize("header", [["c" * 32, "a node"], [1 << 60, "a node"], [b"c" * 32, 5], [None, None]])
def test_a_header_of_other_types_is_refused(header: list[object]) -> None:
    with pytest.raises(PayloadError, match="its header names no contract and no node"):
        read_archive(BytesIO(msgpack.packb(["thinwire messages", 1, *header])), BODY_BYTES_MAX)


def test_an_edge_may_begin_with_any_number() -> None:
    """Also with one from before the first topology, which no honest node has."""
    layout = TileLayout([Parameter(name="x", shape=(64,))])
    message = Message(1, 0, 1, 0, "int8", 7, False, b"")
    replay = replayed(layout, torch.zeros(64), [0, ArchivedMessage(THEIRS, 1, message)])
    assert replay.messages[THEIRS] == 1
    with pytest.raises(PayloadError, match="is mixed without both of its messages"):
        replay.take(Turn(*message.when, 1))


def test_another_version_is_named() -> None:
    other = pack_header(HEADER).replace(b"thinwire messages\x01", b"thinwire messages\x09")
    with pytest.raises(PayloadError, match="version 9; this program reads version 1"):
        read_archive(BytesIO(other), BODY_BYTES_MAX)


def test_an_entry_is_read_as_it_was_written(churn: MemberWorld) -> None:
    archive = churn.nodes[2].archive
    assert archive is not None
    assert [packed(entry) for entry in entries_of(archive)] == archive
    assert any(isinstance(entry, ArchivedMessage) and entry.whose == OWN for entry in entries_of(archive))
