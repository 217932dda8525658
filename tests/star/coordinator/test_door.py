"""Tests the translation between protobuf and the coordinator's types, with the node's translation at the other end."""

from __future__ import annotations

import pytest

from thinwire_coordinator.star import messages as star_messages
from thinwire_coordinator.star.round.announcements import Receipt
from thinwire_node.exchange import port
from thinwire_node.exchange.coordinator import messages as node_messages
from thinwire_proto.wire.reasons import Reason


@pytest.mark.parametrize("reason", list(Reason))
def test_a_receipt_reaches_the_node_with_its_reason(reason: Reason) -> None:
    message = star_messages.receipt(Receipt(reason, "why", step=7, arrived_us=1_500_000))
    assert node_messages.outcome(message) == port.Outcome(reason, "why", 7, 1.5)
