"""The downloads of a snapshot and of the data's file resume where they broke off: a real link, and a server that drops
the connection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from grpc.aio import ServicerContext as Context

from support.clocks import CLOCKS
from support.small import random_replica, small_contract, small_corpus
from thinwire_common.traffic import Traffic
from thinwire_node.bootstrap import fetch_data, fetch_snapshot
from thinwire_node.exchange.coordinator.link import Link
from thinwire_node.exchange.port import Exchange, LinkLost, Surroundings
from thinwire_node.storage.state import NodeState
from thinwire_proto.errors import PayloadError
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.service_pb2_grpc import SwarmServicer, add_SwarmServicer_to_server

PARTS = 10
PARTS_BEFORE_A_BREAK = 4
CONTRACT = small_contract()


@dataclass
class Store(SwarmServicer):
    """Serves one snapshot as the coordinator does, but in small parts.

    breaks: how many streams end after a few parts. refusal: the reason to serve nothing, if any."""

    step: int
    data: bytes
    breaks: int = 0
    refusal: str = ""
    asked: list[tuple[int, int]] = field(default_factory=list)
    is_older: bool = False
    """Whether it sends the data's file as earlier versions did, always from the beginning."""

    @property
    def part_bytes(self) -> int:
        return len(self.data) // PARTS

    async def Snapshot(self, request: pb.SnapshotRequest, context: Context[Any, Any]) -> AsyncIterator[pb.FilePart]:
        self.asked.append((request.step, request.offset))
        if self.refusal:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.refusal)
        async for part in self._parts(self.step, request.offset if request.step == self.step else 0, context):
            yield part

    async def Corpus(self, request: pb.CorpusRequest, context: Context[Any, Any]) -> AsyncIterator[pb.FilePart]:
        self.asked.append((0, request.offset))
        async for part in self._parts(0, 0 if self.is_older else request.offset, context):
            yield part

    async def _parts(self, step: int, offset: int, context: Context[Any, Any]) -> AsyncIterator[pb.FilePart]:
        if offset > len(self.data):
            await context.abort(grpc.StatusCode.OUT_OF_RANGE, "beyond the end")
        breaks, self.breaks = self.breaks > 0, max(0, self.breaks - 1)
        part = pb.FilePart(size=len(self.data), step=step, offset=offset)
        for sent, start in enumerate(range(offset, max(len(self.data), offset + 1), self.part_bytes)):
            if breaks and sent == PARTS_BEFORE_A_BREAK:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the line is cut")
            part.data = self.data[start : start + self.part_bytes]
            yield part
            part = pb.FilePart()


def holding(step: int, data: bytes, breaks: int = 0) -> Store:
    return Store(step, data, breaks)  # type: ignore[abstract]  # nothing else is called


@asynccontextmanager
async def served(store: Store) -> AsyncIterator[Exchange]:
    server = grpc.aio.server()
    add_SwarmServicer_to_server(store, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    link = await Link.open(Surroundings(f"127.0.0.1:{port}", CLOCKS, Traffic()))
    try:
        yield cast(Exchange, link)  # of an exchange, only `snapshot` is called
    finally:
        await link.close()
        await server.stop(None)


def snapshot(folder: Path, step: int) -> tuple[bytes, bytes]:
    """The bytes of a snapshot and the hash of its parameters."""
    replica = random_replica(CONTRACT, seed=step, step=step)
    replica.save(folder / "made")
    return (folder / "made").read_bytes(), replica.state_hash()


@pytest.fixture
def state(tmp_path: Path) -> NodeState:
    return NodeState(tmp_path / "node")


async def test_a_download_that_broke_off_twice_resumes_and_is_identical(tmp_path: Path, state: NodeState) -> None:
    data, state_hash = snapshot(tmp_path, 7)
    store = holding(7, data, breaks=2)
    async with served(store) as link:
        for broken in (1, 2):
            with pytest.raises(LinkLost, match="the line is cut"):
                await fetch_snapshot(link, state, CONTRACT)
            here = broken * PARTS_BEFORE_A_BREAK * store.part_bytes
            assert state.partial_snapshot() == (state.path("snapshot-7.part"), 7, here)
            assert state.path("snapshot-7.part").read_bytes() == data[:here]
            state.close()
            state = NodeState(tmp_path / "node")  # a restarted node resumes too
        replica = await fetch_snapshot(link, state, CONTRACT)
    step = PARTS_BEFORE_A_BREAK * store.part_bytes
    assert store.asked == [(0, 0), (7, step), (7, 2 * step)]
    assert (replica.step, replica.state_hash()) == (7, state_hash)
    assert state.path("replica.safetensors").read_bytes() == data
    assert state.partial_snapshot() is None


async def test_a_newer_snapshot_is_fetched_from_the_beginning(tmp_path: Path, state: NodeState) -> None:
    old, _ = snapshot(tmp_path, 7)
    new, state_hash = snapshot(tmp_path, 9)
    state.path("snapshot-7.part").write_bytes(old[: len(old) // 2])
    store = holding(9, new, breaks=1)
    async with served(store) as link:
        with pytest.raises(LinkLost, match="the line is cut"):
            await fetch_snapshot(link, state, CONTRACT)
        assert not state.path("snapshot-7.part").exists()
        replica = await fetch_snapshot(link, state, CONTRACT)
    assert store.asked == [(7, len(old) // 2), (9, PARTS_BEFORE_A_BREAK * store.part_bytes)]
    assert (replica.step, replica.state_hash()) == (9, state_hash)


@pytest.mark.parametrize("more", [b"", b"and more"])
async def test_a_complete_or_overlong_partial_file_does_not_stop_the_node(
    tmp_path: Path, state: NodeState, more: bytes
) -> None:
    """A node may die after the last byte, before it renames the file. A file that is too long is fetched again."""
    data, state_hash = snapshot(tmp_path, 7)
    state.path("snapshot-7.part").write_bytes(data + more)
    store = holding(7, data)
    async with served(store) as link:
        replica = await fetch_snapshot(link, state, CONTRACT)
    assert store.asked == [(7, len(data + more))] + ([(0, 0)] if more else [])
    assert replica.state_hash() == state_hash


@pytest.mark.parametrize("is_older", [False, True])
async def test_the_file_of_the_data_resumes(state: NodeState, tmp_path: Path, is_older: bool) -> None:
    data = small_corpus().pack()
    store = holding(0, data, breaks=1)
    store.is_older = is_older
    async with served(store) as link:
        with pytest.raises(LinkLost, match="the line is cut"):
            await fetch_data(link, state, CONTRACT)
        state.close()
        state = NodeState(tmp_path / "node")  # a restarted node resumes too
        await fetch_data(link, state, CONTRACT)
    assert store.asked == [(0, 0), (0, PARTS_BEFORE_A_BREAK * store.part_bytes)]
    assert state.path("corpus.zst").read_bytes() == data
    assert not state.path("corpus.part").exists()


async def test_a_damaged_or_overlong_file_of_the_data_is_fetched_again(state: NodeState) -> None:
    data = small_corpus().pack()
    store = holding(0, data)
    async with served(store) as link:
        state.path("corpus.part").write_bytes(bytes(7))
        with pytest.raises(PayloadError):
            await fetch_data(link, state, CONTRACT)
        state.path("corpus.part").write_bytes(data + b"and more")
        await fetch_data(link, state, CONTRACT)
    assert store.asked == [(0, 7), (0, len(data) + 8), (0, 0)]
    assert state.path("corpus.zst").read_bytes() == data
