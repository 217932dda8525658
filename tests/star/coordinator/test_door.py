"""Tests the translation between protobuf and the coordinator's types, with the node's translation at the other end."""

from __future__ import annotations

import pytest

from thinwire_coordinator.hall.leases import SampleRange
from thinwire_coordinator.hall.rpc import messages
from thinwire_coordinator.hall.run import OfferedMomentum
from thinwire_coordinator.star import messages as star_messages
from thinwire_coordinator.star.round.announcements import Receipt, RoundAnnouncement
from thinwire_node.exchange import port
from thinwire_node.exchange.coordinator import messages as node_messages
from thinwire_proto.identity.keys import SIGNATURE_BYTES, SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.reasons import Reason


@pytest.mark.parametrize("reason", list(Reason))
def test_a_receipt_reaches_the_node_with_its_reason(reason: Reason) -> None:
    message = star_messages.receipt(Receipt(reason, "why", step=7, arrived_us=1_500_000))
    assert node_messages.outcome(message) == port.Outcome(reason, "why", 7, 1.5)


def test_a_round_reaches_the_node_with_its_deadline_and_its_lease() -> None:
    lease = (SampleRange(4, 2), SampleRange(9, 1))
    told = RoundAnnouncement(1, 2, 3, deadline=10.5, now=10.0, k=8, nonces=(5, 6), lease=lease)
    message = star_messages.announcement(told)
    assert (message.time_left_ms, message.clock_us) == (500, 10_000_000)
    expected = port.AnnouncedRound(1, 2, 3, 10.5, 8, (5, 6), (range(4, 6), range(9, 10)))
    assert node_messages.announcement(message) == expected


@pytest.mark.parametrize("trained_through", [None, 0, 7])
def test_a_claim_arrives_as_the_node_made_it(trained_through: int | None) -> None:
    sent = port.Claim(1, 2, 3, 2, trained_through, dropped=1, samples=4, fingerprint=2**63, loss=2.5, compute_ms=70)
    header = node_messages.header(sent, SecretKey())
    header.payload_bytes = 1000
    claim = star_messages.claim(header, "s")
    assert (claim.session, claim.payload_bytes) == ("s", 1000)
    kept = {field: value for field, value in vars(sent).items() if field != "name"}  # the coordinator computes it
    assert {field: getattr(claim, field) for field in kept} == kept
    assert len(claim.signature) == SIGNATURE_BYTES


@pytest.mark.parametrize("momentum", [None, (None, ()), (0, ()), (7, (b"x" * 32,))])
def test_a_join_request_says_what_the_node_kept(momentum: tuple[int | None, tuple[bytes, ...]] | None) -> None:
    sent = port.MomentumClaim(*momentum) if momentum else None
    request = pb.JoinRequest(momentum=node_messages.momentum_message(sent), replica_step=0 if momentum else None)
    assert messages.offered_momentum(request) == (OfferedMomentum(*momentum) if momentum else None)
    assert messages.replica_step(request) == (0 if momentum else None)
