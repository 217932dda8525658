"""Tests of the prefetch with real shards and a real server: training never takes a sample whose shard is not here."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.file_server import FileServer, serving
from support.token_folder import write_tokens
from thinwire_node.data_addresses import LOOPBACK, DataAddresses
from thinwire_node.exchange.port import LinkLost, Refused
from thinwire_node.session.blob_fetcher import BlobFetcher, BlobUnavailable
from thinwire_node.session.prefetch import Prefetch
from thinwire_node.session.record import Record
from thinwire_node.storage.blob_cache import BlobCache
from thinwire_node.training.lease import Lease
from thinwire_proto.blobs import Blob
from thinwire_proto.contract.data.tokens import TokensSpec
from thinwire_proto.data.manifest import BLOBS_FOLDER, Manifest
from thinwire_proto.data.token_shards import TokenShards
from thinwire_proto.limits import SOURCE_REST_S

CONTEXT = 9
TOKENS = 10 * CONTEXT + 1
SIZE = 2 * TOKENS

OWN = DataAddresses(networks=LOOPBACK)


@pytest.fixture(autouse=True)
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thinwire_node.backoff.BACKOFF_FIRST_S", 0.01)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FileServer]:
    (tmp_path / "prepared").mkdir()
    with serving(tmp_path / "prepared" / BLOBS_FOLDER) as found:
        yield found


class Node:
    """The data of a node: everything below its training loop."""

    def __init__(self, folder: Path, manifest: Manifest, server: FileServer, bytes_max: int = 1 << 20, **data: Any):
        self.record, self.now, self.lease = Record(), 0.0, Lease()
        self.link_lost = False
        self.changed = asyncio.Event()
        cache = BlobCache(folder / "cache", bytes_max)
        self.data = TokenShards(manifest, TokensSpec(**data), CONTEXT, cache)
        self.fetcher = BlobFetcher(cache, [server.url], self._from_swarm, random.Random(1), self.record, OWN)
        self.prefetch = Prefetch(self.data, self.fetcher, self.record, lambda: self.now, self.changed.set)

    async def _from_swarm(self, blob: Blob, path: Path) -> None:
        raise LinkLost("the coordinator is away") if self.link_lost else Refused("the coordinator does not have it")

    def lease_of(self, *runs: range, upcoming: tuple[range, ...] = ()) -> None:
        self.lease.renew(runs)
        self.prefetch.renew(self.lease, upcoming)

    async def until(self, holds: Callable[[], object]) -> None:
        async def poll() -> None:
            while not holds():
                await asyncio.sleep(0.01)

        await asyncio.wait_for(poll(), 20)

    def ready(self) -> int:
        self.prefetch.pass_over(self.lease)
        return self.prefetch.trainable(self.lease, 4)

    def trained(self) -> list[int]:
        """Train on what can be trained now, as the training loop does. Returns the positions."""
        found: list[int] = []
        while ready := self.ready():
            positions = self.lease.take(ready)
            self.data.batch(positions)  # raises BlobMissing if a shard is not here
            found += positions
        return found


def names(node: Node) -> list[str]:
    """The files in its cache."""
    return [path.name for path in node.fetcher.cache.folder.glob("*")]


async def test_a_lease_and_what_comes_after_it_are_fetched_in_order(tmp_path: Path, server: FileServer) -> None:
    manifest = write_tokens(tmp_path / "prepared", {"text": [TOKENS] * 20})
    node = Node(tmp_path, manifest, server)
    task = asyncio.ensure_future(node.prefetch.run())
    node.lease_of(range(8), upcoming=(range(8, 10), range(30, 40)))
    assert node.prefetch.trainable(node.lease, 4) == 0
    await node.until(lambda: node.record.fetched_bytes["url"] == 2 * SIZE)
    wanted = node.data.needs((range(10), range(30, 40)))
    assert [name for name, _ in server.asked] == [blob.hash for blob in wanted]
    assert node.trained() == list(range(8))
    task.cancel()


async def test_in_a_mixture_only_the_samples_of_a_missing_shard_are_passed_over(
    tmp_path: Path, server: FileServer
) -> None:
    manifest = write_tokens(tmp_path / "prepared", {"text": [TOKENS] * 8, "code": [TOKENS]})
    node = Node(tmp_path, manifest, server, weights={"text": 3.0, "code": 1.0})
    code = manifest.sources[1].train[0].blob
    server.faults = {code.hash: "missing"}
    task = asyncio.ensure_future(node.prefetch.run())
    node.lease_of(range(20))
    await node.until(lambda: node.record.shards_skipped)
    of_code = [position for position in range(20) if code in node.data.needs((range(position, position + 1),))]
    assert len(of_code) == 5
    trained: list[int] = []
    while len(trained) < 15:
        await node.until(node.ready)
        trained += node.trained()
    node.prefetch.pass_over(node.lease)
    assert sorted([*trained, *of_code]) == list(range(20))
    assert node.lease.trained_through == 19
    assert node.record.samples_skipped == node.record.skipped_since_report() == 5
    assert node.record.skipped_since_report() == 0

    server.faults = {}  # it is tried again after a while
    node.now = SOURCE_REST_S + 1
    node.lease_of(range(20, 40))
    await node.until(lambda: node.fetcher.cache.has(code))
    await node.until(lambda: node.prefetch.trainable(node.lease, 4) == 4)
    assert node.record.samples_skipped == 5
    task.cancel()


async def test_a_cache_smaller_than_a_shard_is_slow_but_does_not_stop_training(
    tmp_path: Path, server: FileServer
) -> None:
    manifest = write_tokens(tmp_path / "prepared", {"text": [TOKENS] * 8, "code": [TOKENS] * 2})
    node = Node(tmp_path, manifest, server, bytes_max=10, weights={"text": 1.0, "code": 1.0})
    task = asyncio.ensure_future(node.prefetch.run())
    node.lease_of(range(6))
    trained: list[int] = []
    while len(trained) < 6:
        await node.until(lambda: node.prefetch.trainable(node.lease, 1))
        trained += node.trained()
        node.prefetch.look_again()
    assert trained == list(range(6))
    assert len(names(node)) <= 2
    task.cancel()


async def test_nothing_is_skipped_because_the_coordinator_is_away(tmp_path: Path, server: FileServer) -> None:
    manifest = write_tokens(tmp_path / "prepared", {"text": [TOKENS] * 8})
    node = Node(tmp_path, manifest, server)
    server.fault, node.link_lost = "missing", True
    task = asyncio.ensure_future(node.prefetch.run())
    node.lease_of(range(8))
    await node.until(lambda: len(server.asked) >= 3)
    node.prefetch.pass_over(node.lease)
    assert (node.record.shards_skipped, node.lease.left) == (0, 8)
    server.fault = ""
    node.prefetch.look_again()
    await node.until(lambda: node.prefetch.trainable(node.lease, 8) == 8)
    task.cancel()


async def with_base(folder: Path, server: FileServer, shards: int) -> tuple[Node, asyncio.Task[None]]:
    """A node that fetches. Its model needs a blob as large as two shards, beside which it may keep so many shards."""
    manifest = write_tokens(folder / "prepared", {"text": [TOKENS] * 8}, {"text": [TOKENS]})
    node = Node(folder, manifest, server, bytes_max=(2 + shards) * SIZE)
    data = bytes(2 * SIZE)
    base = Blob(hashlib.sha256(data).hexdigest(), len(data))
    (server.folder / base.hash).write_bytes(data)
    await node.fetcher.fetch([base])
    task = asyncio.ensure_future(node.prefetch.run())
    node.lease_of(range(8), upcoming=(range(8, 80),))
    await node.until(lambda: node.prefetch.trainable(node.lease, 8) == 8 and len(names(node)) == 1 + shards)
    return node, task


async def test_held_out_shards_leave_room_to_train(tmp_path: Path, server: FileServer) -> None:
    node, task = await with_base(tmp_path, server, shards=1)
    asked = list(server.asked)
    with pytest.raises(BlobUnavailable, match="the cache has no room for it beside the next shard to train on"):
        await node.prefetch.fetch_held_out(node.data.held_out_needs("text", range(4)))
    assert server.asked == asked
    assert node.trained() == list(range(8))
    task.cancel()
