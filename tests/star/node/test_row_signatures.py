"""Tests that a node takes updates only with the coordinator's signature, over real gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from support.clocks import CLOCKS
from support.sealed_run import make_run
from thinwire_coordinator.hall.ledger.state_directory import RunState, open_state
from thinwire_coordinator.hall.rpc.request_bounds import SERVICE
from thinwire_coordinator.star.messages import encode_update_parts
from thinwire_node.exchange.coordinator.link import Link
from thinwire_node.exchange.port import NotGenuine
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire.rows import Row
from thinwire_proto.wire.service_pb2_grpc import SwarmStub

STEPS = 3
Forge = Callable[[RunState, Row, bytes], tuple[Row, bytes]]
"""Makes a row and its signature from the genuine ones."""


@pytest.fixture
def state(tmp_path: Path) -> Iterator[RunState]:
    make_run(tmp_path, STEPS)
    state = open_state(tmp_path)
    yield state
    state.close()


@asynccontextmanager
async def linked(state: RunState, forge: Forge) -> AsyncIterator[Link]:
    """A node's link to a coordinator that sends the updates of a run, of which it forges that of step 1."""

    async def updates(request: bytes, context: Any) -> AsyncIterator[bytes]:
        for row in list(state.ledger.rows()):
            signature = state.ledger.signatures.of_row(row.step)
            assert signature is not None
            body = state.bodies.get(row.body_hash, row.body_bytes)
            sent, by = forge(state, row, signature) if row.step == 1 else (row, signature)
            for part in encode_update_parts(row.step, sent.canonical(), body, by).parts(STEPS):
                yield part

    server = grpc.aio.server()
    handler = grpc.method_handlers_generic_handler(SERVICE, {"Updates": grpc.unary_stream_rpc_method_handler(updates)})
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    close: Callable[[], Awaitable[None]] = channel.close
    link = Link(SwarmStub(channel), close, CLOCKS)
    link.coordinator = state.key.public
    try:
        yield link
    finally:
        await link.close()
        await server.stop(None)


def of_another_coordinator(state: RunState, row: Row, signature: bytes) -> tuple[Row, bytes]:
    return row, SecretKey().sign(statements.row(row.hash))


def altered(state: RunState, row: Row, signature: bytes) -> tuple[Row, bytes]:
    """Gives the first node twice the weight."""
    first, *others = row.counted
    return replace(row, counted=(replace(first, weight=2 * first.weight), *others)), signature


def of_another_row(state: RunState, row: Row, signature: bytes) -> tuple[Row, bytes]:
    return row, state.ledger.signatures.of_row(0) or b""


def of_another_statement(state: RunState, row: Row, signature: bytes) -> tuple[Row, bytes]:
    return row, state.key.sign(statements.contribution(row.hash, 0))


def unsigned(state: RunState, row: Row, signature: bytes) -> tuple[Row, bytes]:
    return row, b""


@pytest.mark.parametrize(
    ("forge", "why"),
    [
        (of_another_coordinator, "the row of step 1 is not signed by this coordinator's key"),
        (altered, "the row of step 1 is not signed by this coordinator's key"),
        (of_another_row, "the row of step 1 is not signed by this coordinator's key"),
        (of_another_statement, "the row of step 1 is not signed by this coordinator's key"),
        (unsigned, "the row of step 1 is not signed$"),
    ],
)
async def test_a_row_that_is_not_genuine_is_refused_before_its_update_is_applied(
    state: RunState, forge: Forge, why: str
) -> None:
    async with linked(state, forge) as link:
        stream = link.sealed_updates(state.load_snapshot(0), state.contract)
        assert (await anext(stream)).row.step == 0
        with pytest.raises(NotGenuine, match=why):
            await anext(stream)
