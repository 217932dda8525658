"""What becomes of each contribution, on the coordinator's own event loop and disk, without sockets in between."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from support.swarm_bench import PATIENCE_S, Bench, Busy, parts_of
from thinwire_coordinator.swarm.assembly import assemble
from thinwire_coordinator.swarm.workers import Job
from thinwire_proto.contract import DemoSpec
from thinwire_proto.wire.service_pb2 import JoinRequest, KeptMomentum, Receipt


async def test_a_contribution_is_counted_and_its_receipt_can_be_asked_for_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    member = bench.join("a")
    await bench.attend(member)
    name = bench.name(member, bench.payload(1))
    assert (await bench.contribute(member, 1)).outcome == Receipt.OUTCOME_COUNTED
    again = await bench.swarm.ask_receipt(name)
    assert (again.outcome, again.step) == (Receipt.OUTCOME_COUNTED, 0)
    unknown = await bench.swarm.ask_receipt(b"?" * 32)
    assert (unknown.outcome, unknown.reason) == (Receipt.OUTCOME_NOT_COUNTED, Receipt.REASON_UNKNOWN)
    await bench.close()


async def test_whoever_asks_while_it_is_checked_gets_the_one_receipt(tmp_path: Path) -> None:
    """The connection is lost right behind the last byte; the node joins again and asks. It is counted, and told so."""
    bench = Bench(tmp_path)
    member = bench.join("a")
    await bench.attend(member)
    name = bench.name(member, bench.payload(1))
    sending = asyncio.ensure_future(bench.contribute(member, 1))
    while bench.current.receipt(name) is None:
        await asyncio.sleep(0)
    sending.cancel()
    asked = await asyncio.wait_for(bench.swarm.ask_receipt(name), PATIENCE_S)
    assert asked.outcome == Receipt.OUTCOME_COUNTED
    assert bench.state.ledger.step_of_contribution(name) == 0
    await bench.close()


async def test_what_was_called_unknown_is_never_counted_afterwards(tmp_path: Path) -> None:
    """It had not arrived whole when the node joined anew and asked; then its last part comes after all."""
    bench = Bench(tmp_path)
    member = bench.join("a")
    await bench.attend(member)
    payload, gate = bench.payload(1), asyncio.Event()
    header, name = bench.header(member, payload), bench.name(member, payload)
    sending = asyncio.ensure_future(bench.swarm.contribute(member, header, parts_of(payload, gate)))
    await asyncio.sleep(0)
    bench.join("a")
    assert (await bench.swarm.ask_receipt(name)).reason == Receipt.REASON_UNKNOWN
    gate.set()
    receipt = await asyncio.wait_for(sending, PATIENCE_S)
    assert (receipt.outcome, receipt.reason) == (Receipt.OUTCOME_NOT_COUNTED, Receipt.REASON_NO_LEASE)
    assert bench.state.ledger.step_of_contribution(name) is None
    await bench.close()


async def test_a_second_copy_does_not_cost_the_first_one_its_place(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    member = bench.join("a")
    await bench.attend(member)
    payload, gate = bench.payload(1), asyncio.Event()
    header = bench.header(member, payload)
    first = asyncio.ensure_future(bench.swarm.contribute(member, header, parts_of(payload, gate)))
    await asyncio.sleep(0)
    second = await bench.swarm.contribute(member, header, parts_of(payload))
    assert second.reason == Receipt.REASON_DUPLICATE
    gate.set()
    assert (await asyncio.wait_for(first, PATIENCE_S)).outcome == Receipt.OUTCOME_COUNTED
    await bench.close()


async def test_a_contribution_that_trickles_in_is_late_and_holds_nobody_up(tmp_path: Path) -> None:
    bench = Bench(tmp_path, length_ms=300)
    slow, quick = bench.join("a"), bench.join("b")
    await bench.attend(slow)
    payload = bench.payload(1)
    header = bench.header(slow, payload)
    trickling = bench.swarm.contribute(slow, header, parts_of(payload, asyncio.Event()))
    sending = asyncio.ensure_future(trickling)
    await bench.attend(quick)
    receipt = await asyncio.wait_for(sending, PATIENCE_S)
    assert receipt.reason == Receipt.REASON_LATE
    assert bench.state.ledger.rounds_void >= 1
    await bench.close()


async def test_one_that_comes_after_a_void_round_is_late_and_its_replica_does_not_differ(tmp_path: Path) -> None:
    """The next round stands on the same step, and under another nonce than this fingerprint was taken with."""
    bench = Bench(tmp_path, length_ms=300)
    member = bench.join("a")
    await bench.attend(member)
    payload, gate, current = bench.payload(1), asyncio.Event(), bench.current
    header = bench.header(member, payload)
    sending = asyncio.ensure_future(bench.swarm.contribute(member, header, parts_of(payload, gate)))
    while bench.swarm.intake.current in (current, None):
        await asyncio.sleep(0.01)
    assert bench.current.round.step == header.step
    gate.set()  # soon enough that it is still read
    receipt = await asyncio.wait_for(sending, PATIENCE_S)
    assert receipt.reason == Receipt.REASON_LATE
    assert bench.swarm.registry.counts.fingerprints_different == 0
    await bench.close()


async def test_a_void_round_survives_that_a_contributor_was_forgotten(tmp_path: Path) -> None:
    """It delivered, left, and made place for another in a full swarm, before the round was found void."""
    bench = Bench(tmp_path, length_ms=400, min_contributions=2, nodes_max=2)
    first, second = bench.join("a"), bench.join("b")
    stream = await bench.attend(first)
    await bench.attend(second)
    sending = asyncio.ensure_future(bench.contribute(first, 1))
    while not bench.current.round.accepted:
        await asyncio.sleep(0.01)
    await stream.aclose()
    bench.join("c")
    assert "a" * 32 not in bench.swarm.registry.members.by_id
    receipt = await asyncio.wait_for(sending, PATIENCE_S)
    assert receipt.reason == Receipt.REASON_VOID
    assert not bench.swarm.failed.done()
    await bench.close()


async def test_contributions_that_are_checked_count_against_what_an_update_can_hold(tmp_path: Path) -> None:
    """Two nodes send all that fits and leave; a third one takes a place of theirs, and would be one too many."""
    bench = Bench(tmp_path, pace="clock", length_ms=1500, nodes_max=2, weight_max=16_383)
    first, second = bench.join("a"), bench.join("b")
    streams = [await bench.attend(first), await bench.attend(second)]
    with Busy(bench, Job.DECODE_VOTES):
        sending = []
        for seed, member in enumerate((first, second)):
            name = bench.name(member, bench.payload(seed))
            sending.append(asyncio.ensure_future(bench.contribute(member, seed)))
            while bench.current.receipt(name) is None:
                await asyncio.sleep(0)
        for stream in streams:
            await stream.aclose()
        third = bench.join("c")
        await bench.attend(third)
        one_too_many = asyncio.ensure_future(bench.contribute(third, 2))
        name = bench.name(third, bench.payload(2))
        while not one_too_many.done() and bench.current.receipt(name) is None:
            await asyncio.sleep(0)
    receipts = await asyncio.wait_for(asyncio.gather(*sending), PATIENCE_S)
    assert {receipt.outcome for receipt in receipts} == {Receipt.OUTCOME_COUNTED}
    assert (await asyncio.wait_for(one_too_many, PATIENCE_S)).reason == Receipt.REASON_NO_LEASE
    assert not bench.swarm.failed.done()
    await bench.close()


async def test_a_node_that_restarts_while_its_contribution_is_checked_leaves_its_samples_to_nobody(
    tmp_path: Path,
) -> None:
    """It comes back without its momentum. What it sent is counted, so its samples are not trained again."""
    bench = Bench(tmp_path, min_contributions=1, length_ms=60_000)
    member = bench.join("a")
    await bench.attend(member)
    name = bench.name(member, bench.payload(1))
    with Busy(bench, Job.DECODE_VOTES):
        sending = asyncio.ensure_future(bench.contribute(member, 1))
        while bench.current.receipt(name) is None:
            await asyncio.sleep(0)
        await bench.swarm.join(JoinRequest(node_id=member.node_id), bench.join("a"))
    assert (await asyncio.wait_for(sending, PATIENCE_S)).outcome == Receipt.OUTCOME_COUNTED
    _, free, held = bench.swarm.registry.leases.plain()
    ranges = [*free, *(part for _, _, granted, trained in held for part in (*granted, *trained))]
    assert 0 not in {start for start, _ in ranges}
    await bench.close()


async def test_votes_are_merged_as_they_come(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    first, second = bench.join("a"), bench.join("b")
    await bench.attend(first)
    await bench.attend(second)
    # the second node has a lease from the next round on
    assert (await bench.contribute(first, 1)).outcome == Receipt.OUTCOME_COUNTED
    bench.replica.apply(bench.state.update(bench.state.ledger.row(0)), b"")
    waiting = asyncio.ensure_future(bench.contribute(first, 2))
    while not bench.current.round.accepted:
        await asyncio.sleep(0.01)
    merged = await bench.workers.submit(Job.ENCODE_UPDATE, bench.current.merger.merged)
    assert len(merged) > 0
    assert (await bench.contribute(second, 3)).outcome == Receipt.OUTCOME_COUNTED
    assert (await waiting).outcome == Receipt.OUTCOME_COUNTED
    assert [entry.node for entry in bench.state.ledger.row(1).counted] == ["a" * 32, "b" * 32]
    await bench.close()


@pytest.mark.parametrize("restarts", [1, 3])
async def test_samples_are_not_granted_twice_over_restarts(tmp_path: Path, restarts: int) -> None:
    bench = Bench(tmp_path)
    starts = {}
    for letter in "abcd"[: restarts + 1]:
        member = bench.join(letter)
        await bench.attend(member)
        starts[letter] = bench.swarm.registry.leases.granted(member.node_id)[0].start
        await bench.workers.submit(
            Job.WRITE_LEASES, lambda: None
        )  # what was queued is on disk; then the process is killed
        bench.swarm = assemble(bench.state, bench.replica, bench.workers)
    assert list(starts.values()) == [8 * number for number in range(restarts + 1)]
    for letter, start in starts.items():  # and everybody still holds what they held
        assert bench.swarm.registry.leases.granted(letter * 32)[0].start == start
    await bench.close()


async def test_a_newcomer_in_the_middle_of_a_round_has_a_part_in_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, min_contributions=2, length_ms=60_000)
    first, second = bench.join("a"), bench.join("b")
    await bench.attend(first)
    await bench.attend(second)
    third = bench.join("c")
    stream = await bench.attend(third)
    announcement = await asyncio.wait_for(anext(stream), PATIENCE_S)
    assert announcement.round == bench.current.round.number
    everybody = (third, first, second)
    sending = [asyncio.ensure_future(bench.contribute(member, seed)) for seed, member in enumerate(everybody)]
    receipts = await asyncio.wait_for(asyncio.gather(*sending), PATIENCE_S)
    assert {receipt.outcome for receipt in receipts} == {Receipt.OUTCOME_COUNTED}
    assert len(bench.state.ledger.row(0).counted) == 3
    await bench.close()


async def test_the_nodes_of_a_round_share_its_components(tmp_path: Path) -> None:
    """So that the update does not grow with the swarm. A newcomer has the share that the round was opened with."""
    bench = Bench(tmp_path, DemoSpec(k=48, k_policy="total"), min_contributions=2, length_ms=60_000)
    members = [bench.join(letter) for letter in "abc"]
    streams = [await bench.attend(member) for member in members]
    assert {(await asyncio.wait_for(anext(stream), PATIENCE_S)).k for stream in streams} == {24}
    fair = [asyncio.ensure_future(bench.contribute(member, seed, k=24)) for seed, member in enumerate(members[1:])]
    greedy = await asyncio.wait_for(bench.contribute(members[0], 9, k=25), PATIENCE_S)
    assert (greedy.reason, "k allows 24" in greedy.text) == (Receipt.REASON_MALFORMED, True)
    receipts = await asyncio.wait_for(asyncio.gather(*fair), PATIENCE_S)
    assert {receipt.outcome for receipt in receipts} == {Receipt.OUTCOME_COUNTED}
    await bench.close()


async def test_a_momentum_is_dropped_if_what_left_after_it_was_saved_is_counted_or_may_be(tmp_path: Path) -> None:
    bench = Bench(tmp_path, min_contributions=2, length_ms=60_000)
    first, second = bench.join("a"), bench.join("b")
    await bench.attend(first)
    await bench.attend(second)
    name = bench.name(first, bench.payload(1))
    sending = asyncio.ensure_future(bench.contribute(first, 1))
    while not bench.current.round.accepted:
        await asyncio.sleep(0.01)

    async def joins(*since: bytes) -> str:
        request = JoinRequest(node_id=first.node_id, momentum=KeptMomentum(trained_through=3, sent_since=since))
        return (await bench.swarm.join(request, first)).drop_momentum

    assert await joins() == ""
    assert "may still get into one" in await joins(b"x" * 32, name)  # the round is open
    await bench.contribute(second, 2)
    await sending
    bench.swarm.registry.leases.grant(first.node_id, 8, 1)
    assert "is in an update" in await joins(name)
    assert "away for more than" in await joins()  # with the momentum, its lease went back
    await bench.close()
