"""Lines between nodes, through a real relay on a real port."""

from __future__ import annotations

import pytest

from support.cutting_proxy import cutting_proxy
from support.relayed import CONTRACT, Node, message, relay_service, relayed_pair
from thinwire_node.gossip.lines.line import Framing
from thinwire_proto.errors import PayloadError
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.parts import PART_BYTES_MAX

LARGE = 3 * PART_BYTES_MAX + 17


async def test_messages_of_any_size_arrive_in_order_and_both_ways() -> None:
    async with relayed_pair() as pair:
        one, two = pair.one, pair.two
        sent = [message(1), message(2, LARGE), message(3, 0), message(4)]
        for each in sent:
            one.send(2, each)
            two.send(1, each)
        await pair.start()
        await one.until(lambda: len(one.messages) >= 4)
        await two.until(lambda: len(two.messages) >= 4)
        assert [each for _, each in two.messages] == sent
        assert [each for _, each in one.messages] == sent
        one.lines.confirm(2)
        await two.until(lambda: not two.unconfirmed[1])
        assert one.traffic.peers_sent["relay"] > LARGE
        assert one.traffic.peers_received["relay"] > LARGE
        assert one.traffic.peers_sent["direct"] == 0


async def test_a_node_that_comes_back_is_sent_what_it_has_not_confirmed() -> None:
    async with relayed_pair() as pair:
        one, two = pair.one, pair.two
        await one.start()
        one.send(2, message(1))
        await one.until(lambda: (2, "it is not connected") in one.absences)
        await two.start()
        await two.until(lambda: len(two.messages) >= 1)
        await two.stop()
        two.messages.clear()  # killed before it saved
        one.send(2, message(2, LARGE))
        await one.until(lambda: 2 not in one.lines.present)
        await two.start()
        await two.until(lambda: len(two.taken) >= 2)
        assert two.taken == [message(1), message(2, LARGE)]


async def test_the_relay_cannot_alter_a_message() -> None:
    async with relayed_pair() as pair:
        one, two = pair.one, pair.two

        def alter(parcel: pb.Parcel) -> pb.Parcel:
            if parcel.data and parcel.node == bytes.fromhex(one.id):
                parcel.data = b"\xff" + parcel.data[1:]
            return parcel

        pair.service.alter = alter  # type: ignore[method-assign]
        await pair.start()
        one.send(2, message(1))
        await two.until(lambda: any("not signed" in why for _, why in two.absences))
        assert not two.messages


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
    await one.leave()
    await two.leave()


async def test_a_message_that_is_cut_off_at_the_relay_arrives_once_whole() -> None:
    async with relay_service() as (address, _), cutting_proxy(address) as proxy:
        one, two = Node(proxy.address), Node(address)
        one.knows(n2=two)
        two.knows(n1=one)
        await one.start()
        await two.start()
        await one.until(lambda: one.lines.present == (2,))
        await two.until(lambda: two.lines.present == (1,))
        proxy.cut_after = PART_BYTES_MAX + PART_BYTES_MAX // 2  # in the second part
        one.send(2, message(1, LARGE))
        await one.until(lambda: (2, "the relay is away") in one.absences)
        assert proxy.cuts == 1
        assert not two.taken
        two.send(1, message(1))
        await one.stop()
        await one.start()
        await two.until(lambda: bool(two.taken))
        await one.until(lambda: bool(one.taken))
        one.send(2, message(2))
        await two.until(lambda: len(two.taken) == 2)
        assert two.taken == [message(1, LARGE), message(2)]
        assert one.taken == [message(1)]
        await one.leave()
        await two.leave()


async def test_a_slow_node_delays_only_its_own_line() -> None:
    async with relayed_pair() as pair:
        one, two, slow = pair.one, pair.two, Node("")
        one.knows(n2=two, n3=slow)
        stalled = pair.service.relay.open(slow.id)  # it takes nothing
        await pair.start()
        await one.until(lambda: one.lines.present == (2,))
        one.lines._find(3, one.lines._lines[3])  # as if it had begun its line
        for number in range(1, 6):
            one.send(3, message(number, LARGE))
        await one.until(lambda: (3, "it takes its messages too slowly") in one.absences)
        one.send(2, message(1))
        await two.until(lambda: len(two.messages) >= 1)
        assert sum(parcel.ByteSize() for parcel in stalled.waiting) <= 3 * PART_BYTES_MAX


async def test_parcels_that_cannot_be_read_are_logged_once_and_the_line_comes_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with relayed_pair() as pair:
        one, two = pair.one, pair.two
        await pair.start()
        await one.until(lambda: one.lines.present == (2,))
        absences = len(one.absences)
        wrong = pb.Parcel(node=bytes.fromhex(two.id), header=pb.PeerHeader(codec="sign", body_bytes=1 << 40))
        for _ in range(500):
            one.lines._take_relayed(wrong)
        assert len(one.absences) == absences + 1
        assert sum(record.getMessage().startswith(f"node {two.id[:8]}:") for record in caplog.records) == 1
        two.send(1, message(1))
        await one.until(lambda: len(one.messages) >= 1)


@pytest.fixture
def framings() -> tuple[Framing, Framing, SecretKey]:
    """Both ends of a line, and the first one's key."""
    one, two = SecretKey(), SecretKey()
    return Framing(one, two.public, CONTRACT, 1 << 20), Framing(two, one.public, CONTRACT, 1 << 20), one


Framings = tuple[Framing, Framing, SecretKey]


def test_a_message_for_another_node_or_contract_is_refused(framings: Framings) -> None:
    sender, receiver, key = framings
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


def test_a_body_beyond_the_bound_is_refused_before_it_is_read(framings: Framings) -> None:
    sender, receiver, _ = framings
    parcels = list(sender.parcels(message(1, (1 << 20) + 1)))
    with pytest.raises(PayloadError, match="allows"):
        receiver.read(parcels[0])
