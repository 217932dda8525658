"""Lines between nodes, through a real relay on a real port."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from support.relayed import CONTRACT, Node, relay_service
from thinwire_node.exchange.peers import lines as lines_module
from thinwire_node.exchange.peers.framing import Framing
from thinwire_proto.errors import PayloadError
from thinwire_proto.gossip.copies import Message
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.parts import PART_BYTES_MAX

LARGE = 3 * PART_BYTES_MAX + 17


def message(sequence: int, size: int = 100) -> Message:
    return Message(1, sequence - 1, sequence, 0, "dense", 7, wants_snapshot=False, body=bytes([sequence]) * size)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "PEER_RETRY_S", 0.2)


async def test_messages_of_any_size_arrive_in_order_and_both_ways() -> None:
    async with relay_service() as (address, _):
        one, two = Node(address), Node(address)
        one.knows(n2=two)
        two.knows(n1=one)
        sent = [message(1), message(2, LARGE), message(3, 0), message(4)]
        for each in sent:
            one.send(2, each)
            two.send(1, each)
        await one.start()
        await two.start()
        await one.until(lambda: len(one.messages) >= 4)
        await two.until(lambda: len(two.messages) >= 4)
        assert [each for _, each in two.messages] == sent
        assert [each for _, each in one.messages] == sent
        one.lines.confirm(2)
        await two.until(lambda: not two.unconfirmed[1])
        await one.stop()
        await two.stop()


async def test_a_node_that_comes_back_is_sent_what_it_has_not_confirmed() -> None:
    async with relay_service() as (address, _):
        one, two = Node(address), Node(address)
        one.knows(n2=two)
        two.knows(n1=one)
        await one.start()
        one.send(2, message(1))
        await one.until(lambda: (2, "it is not connected") in one.absences)
        await two.start()
        await two.until(lambda: len(two.messages) >= 1)
        await two.stop()
        await one.until(lambda: 2 not in one.lines.present or one.absences[-1][0] == 2)
        two.messages.clear()  # killed before it saved
        one.send(2, message(2, LARGE))
        await two.start()
        await two.until(lambda: len(two.messages) >= 2)
        assert [each for _, each in two.messages] == [message(1), message(2, LARGE)]
        await one.stop()
        await two.stop()


async def test_the_relay_cannot_alter_a_message() -> None:
    async with relay_service() as (address, service):
        one, two = Node(address), Node(address)
        one.knows(n2=two)
        two.knows(n1=one)

        def alter(parcel: pb.Parcel) -> pb.Parcel:
            if parcel.data and parcel.node == bytes.fromhex(one.id):
                parcel.data = b"\xff" + parcel.data[1:]
            return parcel

        service.alter = alter  # type: ignore[method-assign]
        await one.start()
        await two.start()
        one.send(2, message(1))
        await two.until(lambda: any("not signed" in why for _, why in two.absences))
        assert not two.messages
        await one.stop()
        await two.stop()


async def test_a_lost_relay_makes_all_peers_absent_and_comes_back() -> None:
    async with relay_service() as (address, _):
        one, two = Node(address), Node(address)
        one.knows(n2=two)
        two.knows(n1=one)
        await one.start()
        await two.start()
        await one.until(lambda: one.lines.present == (2,))
    await one.until(lambda: (2, "the relay is away") in one.absences)
    assert one.lines.present == ()
    await one.stop()
    await two.stop()


def framings() -> tuple[Framing, Framing, SecretKey]:
    one, two = SecretKey(), SecretKey()
    ends = Framing(one, two.public, CONTRACT, 1 << 20), Framing(two, one.public, CONTRACT, 1 << 20)
    return (*ends, one)


def test_a_message_for_another_node_or_contract_is_refused() -> None:
    sender, receiver, key = framings()
    other = Framing(key, SecretKey().public, CONTRACT, 1 << 20)
    (parcel,) = other.parcels(message(1))
    with pytest.raises(PayloadError, match="not signed"):
        receiver.read(parcel)
    (parcel,) = sender.parcels(message(1))
    parcel.header.iteration += 1
    with pytest.raises(PayloadError, match="not signed"):
        receiver.read(parcel)
    (parcel,) = sender.parcels(message(1))
    assert receiver.read(parcel) == message(1)


def test_a_body_beyond_the_bound_is_refused_before_it_is_read() -> None:
    sender, receiver, _ = framings()
    parcels = list(sender.parcels(message(1, (1 << 20) + 1)))
    with pytest.raises(PayloadError, match="allows"):
        receiver.read(parcels[0])


def test_parts_of_a_broken_message_are_passed_over() -> None:
    sender, receiver, _ = framings()
    large = replace(message(1), body=bytes(1 << 20))
    first, *_ = sender.parcels(large)
    (next_one,) = sender.parcels(message(2))
    assert receiver.read(pb.Parcel(data=b"rest")) is None
    assert receiver.read(pb.Parcel(header=first.header, data=b"x")) is None
    assert receiver.read(next_one) == message(2)


async def test_a_slow_node_delays_only_its_own_line() -> None:
    async with relay_service() as (address, service):
        one, two, slow = Node(address), Node(address), Node(address)
        one.knows(n2=two, n3=slow)
        two.knows(n1=one)
        stalled = service.relay.open(slow.id)  # it takes nothing
        await one.start()
        await two.start()
        await one.until(lambda: one.lines.present == (2,))
        one.lines._find(3, one.lines._lines[3])  # as if it had begun its line
        for number in range(1, 6):
            one.send(3, message(number, LARGE))
        await one.until(lambda: (3, "it takes its messages too slowly") in one.absences)
        one.send(2, message(1))
        await two.until(lambda: len(two.messages) >= 1)
        assert sum(parcel.ByteSize() for parcel in stalled.waiting) <= 3 * PART_BYTES_MAX
        await one.stop()
        await two.stop()
        await asyncio.sleep(0)
