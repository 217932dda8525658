"""A link that has not joined signs nothing: a statement under another key than the node's would be refused unseen."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from thinwire_node.exchange.coordinator.link import Link
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.service_pb2_grpc import SwarmStub


async def test_a_link_that_has_not_joined_signs_nothing() -> None:
    channel = grpc.aio.insecure_channel("127.0.0.1:1")  # nobody is called
    stub: Any = SwarmStub(channel)
    link = Link(stub, channel.close)
    for statement in (link.leave(None), link.evaluated(pb.EvaluationPart(), 1.0)):
        with pytest.raises(AssertionError, match="join first"):
            await statement
    await link.close()
