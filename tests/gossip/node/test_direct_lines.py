"""Direct lines between nodes, on real ports with TLS, beside a real relay."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from support.cutting_proxy import cutting_proxy
from support.relayed import (
    CONTRACT,
    DIRECT_ALONE,
    HERE,
    TIMES,
    Node,
    Pair,
    direct_pair,
    listening,
    message,
    pair_of,
    two_keys,
)
from thinwire_node.gossip.lines.dialler import DialFailed, dial
from thinwire_node.gossip.lines.direct_lines import DirectLines, LineTimes, refusal_of
from thinwire_node.gossip.lines.server import STRANGER
from thinwire_node.gossip.lines.stream import Wire
from thinwire_node.gossip.port import PeerPlace
from thinwire_node.limits.limits import check
from thinwire_node.limits.month import MonthlyBudget
from thinwire_node.limits.throttle import Throttle
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.parts import PART_BYTES_MAX

LARGE = 3 * PART_BYTES_MAX + 17


async def exchange(pair: Pair, first: int = 1) -> None:
    """Each sends the other two messages, which arrive."""
    one, two = pair.one, pair.two
    before = one.taken, two.taken
    sent = [message(first), message(first + 1, LARGE)]
    for each in sent:
        one.send(2, each)
        two.send(1, each)
    await one.until(lambda: len(one.taken) >= len(before[0]) + 2)
    await two.until(lambda: len(two.taken) >= len(before[1]) + 2)
    assert one.taken == [*before[0], *sent]
    assert two.taken == [*before[1], *sent]
    for node, peer in ((one, 2), (two, 1)):
        node.lines.confirm(peer)
    await one.until(lambda: not one.unconfirmed[2])
    await two.until(lambda: not two.unconfirmed[1])


async def until_direct(pair: Pair) -> None:
    await pair.one.until(lambda: pair.one.lines.direct == (2,))
    await pair.two.until(lambda: pair.two.lines.direct == (1,))


async def until_relayed(pair: Pair) -> None:
    await pair.one.until(lambda: pair.one.lines.present == (2,) and not pair.one.lines.direct)
    await pair.two.until(lambda: pair.two.lines.present == (1,) and not pair.two.lines.direct)


def relayed_bytes(pair: Pair) -> int:
    return pair.one.traffic.peers_sent["relay"] + pair.two.traffic.peers_sent["relay"]


@pytest.mark.parametrize("listens", ["both", "one", "two"])
async def test_messages_go_directly_if_an_end_listens(listens: str) -> None:
    async with direct_pair(listens, times=DIRECT_ALONE) as pair:
        await pair.start()
        await until_direct(pair)
        await exchange(pair)
        assert relayed_bytes(pair) == 0
        for traffic in (pair.one.traffic, pair.two.traffic):
            assert traffic.peers_sent["direct"] > LARGE
            assert traffic.peers_received["direct"] > LARGE
            assert traffic.sent.bytes["parcel"] == traffic.peers_sent["direct"]


async def test_a_node_that_wants_no_direct_line_uses_the_relay() -> None:
    key, other = two_keys()
    async with pair_of((key, DirectLines()), (other, await listening(other))) as pair:
        await pair.start()
        await until_relayed(pair)
        await exchange(pair)
        assert pair.one.traffic.peers_sent["direct"] == 0


async def test_a_node_whose_owner_limits_its_traffic_stops_listening(tmp_path: Path) -> None:
    """Direct connections of before would not be paced."""
    key, other = two_keys()
    throttle = Throttle(check({}), MonthlyBudget(tmp_path / "month.json", None, 1, 0.0), time.time)
    async with pair_of((key, replace(await listening(key), throttle=throttle)), (other, HERE)) as pair:
        await pair.start()
        await until_direct(pair)
        await exchange(pair)
        throttle.take(check({"max_upload": "1MB/s"}))
        await pair.one.lines.pace()
        assert pair.one.lines.listens_at == ""
        await until_relayed(pair)
        await exchange(pair, 3)
        assert HERE.refusal is not None
        with pytest.raises(DialFailed):
            await dial(pair.one.direct.listens_at, key.public, other, CONTRACT, HERE.refusal, never)


async def test_a_peer_under_the_address_of_another_gets_no_message(caplog: pytest.LogCaptureFixture) -> None:
    _, stranger = two_keys()
    other = await listening(stranger)
    assert other.server is not None
    with caplog.at_level("INFO", "thinwire.node"):
        async with direct_pair("two", address_of_two=other.listens_at) as pair:
            await pair.start()
            await until_relayed(pair)
            await exchange(pair)
            assert pair.one.traffic.peers_sent["direct"] == 0
    await other.server.stop()
    assert "another node than the coordinator named answered" in caplog.text
    (told,) = [record for record in caplog.records if getattr(record, "event", None) == "node.peer_not_direct"]
    assert told.getMessage().startswith(f"no direct line to node {pair.two.id[:8]} at {other.listens_at}: ")


async def test_whoever_is_no_peer_gets_no_line(caplog: pytest.LogCaptureFixture) -> None:
    async with direct_pair("one") as pair:
        one, stranger = pair.one, SecretKey()
        with caplog.at_level("INFO", "thinwire.node"):
            await pair.start()
            await until_direct(pair)
        assert f"a direct line to node {pair.two.id[:8]}" in caplog.text
        assert HERE.refusal is not None
        with pytest.raises(DialFailed) as caught:
            await dial(one.direct.listens_at, one.key.public, stranger, CONTRACT, HERE.refusal, never)
        assert str(caught.value) == STRANGER
        assert one.lines.direct == (2,)
        one.lines.assign({})  # a new topology, without the peer
        with pytest.raises(DialFailed) as caught:
            await dial(one.direct.listens_at, one.key.public, pair.two.key, CONTRACT, HERE.refusal, never)
        assert str(caught.value) == STRANGER


async def never(wire: Wire, first: pb.Parcel) -> str:
    raise AssertionError("the line is taken")


async def test_a_newer_line_of_a_peer_takes_the_place_of_the_older_and_not_too_often() -> None:
    times = LineTimes(first_s=30.0, max_s=60.0, direct_s=0.2)
    key, other = two_keys()
    async with pair_of((key, await listening(key)), (other, HERE), times=times) as pair:
        await pair.start()
        await until_direct(pair)
        assert HERE.refusal is not None
        with pytest.raises(DialFailed) as caught:  # the first one was a moment ago
            await dial(pair.one.direct.listens_at, key.public, other, CONTRACT, HERE.refusal, never)
        assert str(caught.value) == STRANGER
    async with pair_of((key, await listening(key)), (other, HERE)) as pair:
        await pair.start()
        await until_direct(pair)
        older = pair.two.lines._lines[1].stream

        async def newer(wire: Wire, first: pb.Parcel) -> str:
            await pair.two.until(lambda: pair.two.lines._lines[1].stream is not older)
            return "the older has ended"

        assert await dial(pair.one.direct.listens_at, key.public, other, CONTRACT, HERE.refusal, newer)


async def test_an_address_in_the_own_network_is_not_connected_to(caplog: pytest.LogCaptureFixture) -> None:
    key, other = two_keys()
    public_alone = DirectLines(refusal=refusal_of(()))
    with caplog.at_level("INFO", "thinwire.node"):
        async with pair_of((key, public_alone), (other, await listening(other))) as pair:
            await pair.start()
            await until_relayed(pair)
            await exchange(pair)
    assert "127.0.0.1 is no address of the public internet (--data-networks)" in caplog.text


async def test_a_message_that_is_cut_off_in_the_middle_arrives_once_whole() -> None:
    async with direct_pair("two") as pair, cutting_proxy(pair.two.direct.listens_at) as proxy:
        pair.one.knows(n2=PeerPlace(pair.two.key.public, proxy.address))
        await pair.start()
        await until_direct(pair)
        proxy.cut_after = PART_BYTES_MAX  # of the connection that is there
        pair.one.send(2, message(1, LARGE))
        await pair.two.until(lambda: len(pair.two.messages) >= 1)
        assert proxy.cuts == 1
        assert pair.two.taken == [message(1, LARGE)]
        assert pair.one.absences == pair.two.absences == []  # the relay took over
        await until_direct(pair)  # and it goes back
        before = relayed_bytes(pair)
        await exchange(pair, 2)
        assert relayed_bytes(pair) == before


async def test_a_dead_address_leads_to_the_relay_and_a_live_one_back() -> None:
    keys = two_keys()
    first = await listening(keys[1])
    assert first.server is not None
    port = first.server.port
    await first.server.stop()  # nobody listens at its address now
    async with direct_pair("nobody", first.listens_at, keys) as pair:
        await pair.start()
        await until_relayed(pair)
        await exchange(pair)
        await pair.two.leave()
        pair.two = Node(pair.two.relay_address, keys[1], await listening(keys[1], port))
        pair.two.knows(n1=pair.one)
        await pair.two.start()
        await until_direct(pair)
        before = relayed_bytes(pair)
        await exchange(pair, 3)
        assert relayed_bytes(pair) == before


async def test_a_peer_that_takes_nothing_is_cut_off() -> None:
    times = LineTimes(TIMES.first_s, TIMES.max_s, TIMES.direct_s, accept_s=0.2)
    key, other = two_keys()
    deaf = await listening(key, refusal=None)
    async with pair_of((key, deaf), (other, HERE), times=times) as pair, cutting_proxy(deaf.listens_at) as proxy:
        one, two = pair.one, pair.two
        two.knows(n1=PeerPlace(key.public, proxy.address))
        await pair.start()
        await until_direct(pair)
        proxy.stall()
        for number in range(1, 9):
            one.send(2, message(number, LARGE))
        await one.until(lambda: not one.lines.direct)
        assert one.lines.present == (2,)  # through the relay
        await two.until(lambda: len(two.taken) == 8)
