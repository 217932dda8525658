"""Tests of the outcome of contributions, with the real event loop and disk but without sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.swarm_bench import PATIENCE_S, Bench, key_of, parts_of
from thinwire_common.within import Within
from thinwire_coordinator.hall.hall import open_hall
from thinwire_coordinator.hall.run import OfferedMomentum
from thinwire_coordinator.hall.workers import Job
from thinwire_coordinator.star.round.announcements import Announcement, IdleAnnouncement, RoundAnnouncement
from thinwire_coordinator.star.star import Star
from thinwire_proto.wire.reasons import Reason


async def test_a_contribution_is_counted_and_its_receipt_can_be_asked_for_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    member = bench.join("a")
    await bench.attend(member)
    name = bench.name(member, bench.payload(1))
    assert (await bench.contribute(member, 1)).reason is Reason.COUNTED
    again = await bench.swarm.ask_receipt(name)
    assert (again.reason, again.step) == (Reason.COUNTED, 0)
    unknown = await bench.swarm.ask_receipt(b"?" * 32)
    assert (unknown.counted, unknown.reason) == (False, Reason.UNKNOWN)
    await bench.close()


async def test_a_contribution_reported_as_unknown_is_never_counted_later(tmp_path: Path) -> None:
    """The node joins again and asks while the contribution is incomplete. Its last part arrives later."""
    bench = Bench(tmp_path)
    member = bench.join("a")
    await bench.attend(member)
    payload, gate = bench.payload(1), asyncio.Event()
    claim, name = bench.claim(member, payload), bench.name(member, payload)
    sending = asyncio.ensure_future(bench.swarm.contribute(member, claim, parts_of(payload, gate)))
    await asyncio.sleep(0)
    bench.join("a")
    assert (await bench.swarm.ask_receipt(name)).reason is Reason.UNKNOWN
    gate.set()
    receipt = await asyncio.wait_for(sending, PATIENCE_S)
    assert (receipt.counted, receipt.reason) == (False, Reason.NO_LEASE)
    assert bench.state.ledger.step_of_contribution(name) is None
    await bench.close()


async def test_an_upload_of_a_lost_session_takes_no_samples_from_the_next_one(tmp_path: Path) -> None:
    """A machine lost its power amid an upload, and its new process trains on these samples again."""
    bench = Bench(tmp_path, pace="clock", length_ms=500, samples=8, base_age_max=0)
    member = bench.join("a")
    await bench.attend(member)
    leases = bench.swarm.hall.leases
    async with Within(PATIENCE_S):
        while not (granted := leases.granted(member.node_id)):
            await asyncio.sleep(0.01)
        payload = bench.payload(1)
        never = parts_of(payload, asyncio.Event())
        sending = asyncio.ensure_future(bench.swarm.contribute(member, bench.claim(member, payload), never))
        await asyncio.sleep(0.05)
        await bench.swarm.join(bench.join("a"), OfferedMomentum(None, ()), 0)
        assert (await sending).reason is Reason.NO_LEASE
    assert leases.granted(member.node_id) == granted
    await bench.close()


async def test_a_contribution_after_a_void_round_is_late_and_its_replica_does_not_differ(tmp_path: Path) -> None:
    """The next round has the same step but another nonce than the one of this fingerprint."""
    bench = Bench(tmp_path, length_ms=300)
    member = bench.join("a")
    await bench.attend(member)
    payload, gate, current = bench.payload(1), asyncio.Event(), bench.current
    claim = bench.claim(member, payload)
    sending = asyncio.ensure_future(bench.swarm.contribute(member, claim, parts_of(payload, gate)))
    while bench.swarm.intake.current in (current, None):
        await asyncio.sleep(0.01)
    assert bench.current.round.step == claim.step
    gate.set()  # early enough to be read
    receipt = await asyncio.wait_for(sending, PATIENCE_S)
    assert receipt.reason is Reason.LATE
    assert bench.swarm.hall.counts.fingerprints_different == 0
    await bench.close()


async def test_an_upload_is_late_soon_after_its_round_has_ended(tmp_path: Path) -> None:
    """Not only at the deadline, which is far away at pace barrier."""
    bench = Bench(tmp_path, pace="barrier", length_ms=600_000, min_contributions=1)
    first, second = bench.join("a"), bench.join("b")
    await bench.attend(first)
    await bench.attend(second)
    payload, first_round = bench.payload(1), bench.current
    never = parts_of(payload, asyncio.Event())
    sending = asyncio.ensure_future(bench.swarm.contribute(second, bench.claim(second, payload), never))
    await asyncio.sleep(0.05)
    bench.swarm.driver.excuse(second.node_id, has_nothing=True)  # so that the round does not wait for it
    async with Within(PATIENCE_S):
        await bench.contribute(first, 2)
        assert first_round.is_closed
        assert (await sending).reason is Reason.LATE
    await bench.close()


async def test_votes_are_merged_as_they_arrive(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    first, second = bench.join("a"), bench.join("b")
    await bench.attend(first)
    await bench.attend(second)
    # the second node gets a lease with the next round
    assert (await bench.contribute(first, 1)).reason is Reason.COUNTED
    bench.replica.apply(bench.state.update(bench.state.ledger.row(0)), b"")
    waiting = asyncio.ensure_future(bench.contribute(first, 2))
    while not bench.current.round.accepted:
        await asyncio.sleep(0.01)
    merged = await bench.workers.submit(Job.ENCODE_UPDATE, bench.current.merger.merged)
    assert len(merged) > 0
    assert (await bench.contribute(second, 3)).reason is Reason.COUNTED
    assert (await waiting).reason is Reason.COUNTED
    assert [entry.node for entry in bench.state.ledger.row(1).counted] == [first.node_id, second.node_id]
    await bench.close()


@pytest.mark.parametrize("restarts", [1, 3])
async def test_samples_are_not_granted_twice_over_restarts(tmp_path: Path, restarts: int) -> None:
    bench = Bench(tmp_path)
    starts = {}
    for letter in "abcd"[: restarts + 1]:
        member = bench.join(letter)
        await bench.attend(member)
        starts[letter] = bench.swarm.hall.leases.granted(member.node_id)[0].start
        await asyncio.sleep(0)  # the write of the leases is queued
        await bench.workers.submit(
            Job.WRITE_LEASES, lambda: None
        )  # queued writes reach the disk before the process is killed
        bench.swarm = Star(open_hall(bench.state, bench.replica, bench.workers))
    assert list(starts.values()) == [8 * number for number in range(restarts + 1)]
    for letter, start in starts.items():  # every node still holds its lease
        assert bench.swarm.hall.leases.granted(key_of(letter).public.node_id)[0].start == start
    await bench.close()


async def test_no_grant_is_announced_before_it_is_on_disk(tmp_path: Path) -> None:
    """A round opens, and extends leases, while the disk still writes the leases of the round before."""
    bench = Bench(tmp_path, length_ms=60_000, min_contributions=1)
    one, two = bench.join("a"), bench.join("b")
    await anext(await bench.attend(one))
    gates, writes = [threading.Event(), threading.Event()], list[bytes]()
    record, first = bench.state.ledger.record_leases, bench.current.round

    def record_slowly(packed: bytes) -> None:
        writes.append(packed)
        assert all(gate.wait(PATIENCE_S) for gate in gates[: len(writes)])
        record(packed)

    async def next_round(stream: AsyncIterator[Announcement]) -> RoundAnnouncement:
        return await anext(found async for found in stream if isinstance(found, RoundAnnouncement))

    object.__setattr__(bench.state.ledger, "record_leases", record_slowly)
    stream = await bench.attend(two)  # its grant is on its way to the disk
    leases = bench.swarm.hall.leases
    for member in (one, two):
        bench.swarm.driver.excuse(member.node_id, has_nothing=True)
        last = leases.granted(member.node_id)[-1]
        leases.report(member.node_id, last.start + last.count - 1)
    async with Within(PATIENCE_S):
        while bench.swarm.intake.current is None or bench.current.round is first:
            await asyncio.sleep(0.01)
        gates[0].set()
        while len(writes) < 2:
            await asyncio.sleep(0.01)
        announced = asyncio.ensure_future(next_round(stream))
        await asyncio.wait({announced}, timeout=0.1)
        is_early = announced.done()
        gates[1].set()
        lease = (await announced).lease
    assert not is_early
    assert lease == bench.state.reading_ledger.leases().granted(two.node_id)
    await bench.close()


async def test_a_node_that_joins_during_a_round_takes_part_in_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, min_contributions=2, length_ms=60_000)
    first, second = bench.join("a"), bench.join("b")
    await bench.attend(first)
    await bench.attend(second)
    third = bench.join("c")
    stream = await bench.attend(third)
    announcement = await asyncio.wait_for(anext(stream), PATIENCE_S)
    assert isinstance(announcement, RoundAnnouncement)
    assert announcement.number == bench.current.round.number
    sending = [asyncio.ensure_future(bench.contribute(third, 0))]
    async with Within(PATIENCE_S):
        while not bench.current.round.accepted:  # the round waits for the two others alone
            await asyncio.sleep(0.01)
    sending += [asyncio.ensure_future(bench.contribute(member, seed)) for seed, member in enumerate((first, second), 1)]
    receipts = await asyncio.wait_for(asyncio.gather(*sending), PATIENCE_S)
    assert {receipt.reason for receipt in receipts} == {Reason.COUNTED}
    assert len(bench.state.ledger.row(0).counted) == 3
    await bench.close()


@pytest.mark.parametrize(
    ("needed", "told"), [(1, "waiting for samples of the open round"), (2, "waiting for 1 more node")]
)
async def test_a_node_is_not_told_that_it_is_missing_itself(tmp_path: Path, needed: int, told: str) -> None:
    bench = Bench(tmp_path, min_contributions=needed)
    stream = bench.swarm.attend(bench.join("a"))
    first = await anext(stream)
    assert isinstance(first, IdleAnnouncement)
    assert first.text == told
    await stream.aclose()
    await bench.close()


async def test_a_momentum_is_dropped_if_a_contribution_sent_after_it_was_saved_may_count(tmp_path: Path) -> None:
    bench = Bench(tmp_path, min_contributions=2, length_ms=60_000)
    first, second, third = (bench.join(name) for name in "abc")
    for member in (first, second, third):
        await bench.attend(member)
    name = bench.name(first, bench.payload(1))
    sending = asyncio.ensure_future(bench.contribute(first, 1))
    while not bench.current.round.accepted:
        await asyncio.sleep(0.01)

    async def joins(*since: bytes) -> str:
        return (await bench.swarm.join(first, OfferedMomentum(3, since), None)).drop_momentum

    assert await joins() == ""
    malformed = b"no votes"
    refused = await bench.swarm.contribute(third, bench.claim(third, malformed), parts_of(malformed))
    assert refused.reason is Reason.MALFORMED
    assert await joins(bench.name(third, malformed)) == ""
    assert "may still get into one" in await joins(b"x" * 32, name)  # the round is open
    await bench.contribute(second, 2)
    await sending
    bench.swarm.hall.leases.grant(first.node_id, 8, 1)
    assert "is in an update" in await joins(name)
    assert "away for more than" in await joins()  # together with the momentum, its lease was taken back
    await bench.close()
