"""A link that has not joined signs nothing: a statement under another key than the node's would be refused unseen."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from support.clocks import CLOCKS
from thinwire_node.exchange.coordinator.link import Link
from thinwire_node.exchange.port import EvaluationPart
from thinwire_proto.wire.service_pb2_grpc import SwarmStub


async def test_a_link_that_has_not_joined_signs_nothing() -> None:
    channel = grpc.aio.insecure_channel("127.0.0.1:1")  # nobody is called
    stub: Any = SwarmStub(channel)
    link = Link(stub, channel.close, CLOCKS)
    for statement in (link.leave(None), link.evaluated(EvaluationPart(0, "", 1, 0, 1), 1.0)):
        with pytest.raises(AssertionError, match="join first"):
            await statement
    await link.close()
