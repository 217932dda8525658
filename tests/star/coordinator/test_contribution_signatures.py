"""Tests that a contribution with a wrong signature changes nothing: no receipt, no lease, no round."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from support.swarm_bench import PATIENCE_S, Bench, key_of, parts_of
from thinwire_coordinator.hall.members import Member
from thinwire_coordinator.star.round.admission import ContributionClaim, check_signature
from thinwire_proto.identity import statements
from thinwire_proto.wire.reasons import Reason

NAME = b"n" * 32


def claim(signature: bytes, samples: int = 8) -> ContributionClaim:
    return ContributionClaim("s", 1, 2, 3, 3, 0, samples, 7, 100, signature=signature)


def test_a_signature_covers_the_hash_and_the_samples() -> None:
    key = key_of("a")
    right = key.sign(statements.contribution(NAME, 8))
    assert check_signature(claim(right), NAME, key.public) is None
    for wrong, name, owner in (
        (claim(right, samples=9), NAME, key),
        (claim(right), b"m" * 32, key),
        (claim(right), NAME, key_of("b")),
        (claim(right[:-1]), NAME, key),
        (claim(right + b"\0"), NAME, key),
        (claim(bytes(64)), NAME, key),
        (claim(key.sign(statements.row(NAME))), NAME, key),
    ):
        refusal = check_signature(wrong, name, owner.public)
        assert refusal is not None
        assert refusal.reason is Reason.SIGNATURE
    unsigned = check_signature(claim(b""), NAME, key.public)
    assert unsigned is not None
    assert unsigned.text == "the contribution is not signed; update the node"


async def contribute(bench: Bench, member: Member, payload: bytes, **fields: object) -> Reason:
    sent = replace(bench.claim(member, payload), **fields)  # type: ignore[arg-type]
    receipt = await asyncio.wait_for(bench.swarm.contribute(member, sent, parts_of(payload)), PATIENCE_S)
    return receipt.reason


async def test_a_forged_contribution_leaves_lease_round_and_receipt_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    member = bench.join("a")
    await bench.attend(member)
    payload = bench.payload(1)
    lease, current = bench.swarm.hall.leases.plain(), bench.current
    name = bench.name(member, payload)
    assert await contribute(bench, member, payload, signature=b"") is Reason.SIGNATURE
    assert await contribute(bench, member, payload, signature=bytes(64)) is Reason.SIGNATURE
    assert bench.swarm.hall.leases.plain() == lease
    assert member.node_id in current.round.awaited
    assert current.receipt(name) is None
    assert (await bench.swarm.ask_receipt(name)).reason is Reason.UNKNOWN
    assert await contribute(bench, member, payload) is Reason.COUNTED
    assert (await bench.swarm.ask_receipt(name)).reason is Reason.COUNTED
    await bench.close()


async def test_the_receipt_of_a_refused_contribution_is_not_changed_by_a_forged_copy(tmp_path: Path) -> None:
    """The node's own contribution is refused because its parameters differ. A copy with the same hash is forged."""
    bench = Bench(tmp_path, pace="clock", length_ms=1500)  # the round stays open after the refusal
    member = bench.join("a")
    await bench.attend(member)
    payload = bench.payload(1)
    start, name = bench.swarm.hall.leases.granted(member.node_id)[0].start, bench.name(member, payload)
    forged = {"signature": bytes(64)}
    assert await contribute(bench, member, payload, **forged) is Reason.SIGNATURE
    assert await contribute(bench, member, payload, trained_through=start + 7, fingerprint=1) is Reason.REPLICA_DIFFERS
    assert await contribute(bench, member, payload, **forged) is Reason.SIGNATURE
    assert (await bench.swarm.ask_receipt(name)).reason is Reason.REPLICA_DIFFERS
    # a genuine copy gets the receipt of the first one, and is not judged again
    assert await contribute(bench, member, payload) is Reason.REPLICA_DIFFERS
    await bench.close()


async def test_a_contribution_that_is_sent_again_is_refused(tmp_path: Path) -> None:
    """In its round, in the next one as it was, and in the next one with its header moved to that."""
    bench = Bench(tmp_path, min_contributions=2, length_ms=60_000)
    member, other = bench.join("a"), bench.join("b")
    await bench.attend(member)
    await bench.attend(other)
    payload, replayed = bench.payload(1), bench.claim(member, bench.payload(1))
    first = asyncio.ensure_future(contribute(bench, member, payload))
    while not bench.current.round.accepted:
        await asyncio.sleep(0)
    assert await contribute(bench, member, payload) is Reason.DUPLICATE
    assert await contribute(bench, other, bench.payload(2)) is Reason.COUNTED
    assert await first is Reason.COUNTED
    bench.replica.apply(bench.state.update(bench.state.ledger.row(0)), b"")
    assert (await bench.swarm.contribute(member, replayed, parts_of(payload))).reason is Reason.LATE
    assert await contribute(bench, member, payload, signature=replayed.signature) is Reason.SIGNATURE
    assert bench.state.ledger.step == 1
    await bench.close()
