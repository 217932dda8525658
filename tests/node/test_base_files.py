"""Tests that a machine fetches the files of a frozen base once: from an address that has them by their names, from the
Hub's cache, or from another node of the machine."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from node.test_blob_fetcher import SIZE, Swarm, blob_in
from support.adapters import base_folder, made
from support.disks import small_disk
from support.file_server import FileServer
from support.hub import cached
from thinwire_node.data_addresses import LOOPBACK, DataAddresses
from thinwire_node.resources import Room, with_base_here
from thinwire_node.session import blob_fetcher
from thinwire_node.session.blob_fetcher import BaseSources, BlobFetcher
from thinwire_node.session.record import Record
from thinwire_node.storage.base_files import BaseFilesHere, users_folder
from thinwire_node.storage.blob_cache import BlobCache
from thinwire_proto.blobs import Blob, blob_of

NAME = "model-00001-of-00002.safetensors"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thinwire_node.backoff.BACKOFF_FIRST_S", 0.01)
    monkeypatch.setattr(blob_fetcher, "TURN_EVERY_S", 0.01)


def node(folder: Path, blob: Blob, swarm: Swarm, urls: tuple[str, ...] = (), name: str = NAME) -> BlobFetcher:
    """The fetcher of a node with this state directory."""
    base = BaseSources({blob: name}, urls, BaseFilesHere(users_folder()))
    own = DataAddresses(networks=LOOPBACK)
    return BlobFetcher(BlobCache(folder / "blobs"), (), swarm.blob, random.Random(1), Record(), own, base=base)


async def test_a_file_is_fetched_by_its_name_before_the_coordinator_is_asked(
    tmp_path: Path, server: FileServer
) -> None:
    blob, swarm = blob_in(server.folder), Swarm()
    (server.folder / blob.hash).rename(server.folder / NAME)
    found = node(tmp_path / "a", blob, swarm, (server.url + "/Qwen/Qwen3-8B/resolve/abc/",))
    await found.fetch([blob])
    assert blob_of(found.cache.path(blob)) == blob
    assert (server.asked, swarm.asked) == ([(NAME, 0)], [])
    assert found.record.fetched_bytes == {"url": SIZE, "coordinator": 0}


async def test_a_file_without_a_name_is_not_asked_for_by_name(tmp_path: Path, server: FileServer) -> None:
    (tmp_path / "coordinator").mkdir()
    blob = blob_in(tmp_path / "coordinator")
    swarm = Swarm(tmp_path / "coordinator")
    await node(tmp_path / "a", blob, swarm, (server.url,), name="").fetch([blob])
    assert (server.asked, swarm.asked) == ([], [blob])


async def test_another_revision_costs_an_attempt_and_the_coordinator_gives_the_file(
    tmp_path: Path, server: FileServer
) -> None:
    (tmp_path / "coordinator").mkdir()
    blob, other = blob_in(tmp_path / "coordinator"), blob_in(server.folder, seed=2)
    (server.folder / other.hash).rename(server.folder / NAME)
    found = node(tmp_path / "a", blob, Swarm(tmp_path / "coordinator"), (server.url,))
    await found.fetch([blob])
    assert blob_of(found.cache.path(blob)) == blob
    assert server.asked == [(NAME, 0)]


async def test_nodes_that_start_at_once_on_one_machine_fetch_a_file_once(tmp_path: Path) -> None:
    (tmp_path / "coordinator").mkdir()
    blob = blob_in(tmp_path / "coordinator")
    released = asyncio.Event()

    class Slow(Swarm):
        async def blob(self, blob: Blob, path: Path) -> None:
            await released.wait()
            await super().blob(blob, path)

    swarm = Slow(tmp_path / "coordinator")
    nodes = [node(tmp_path / name, blob, swarm) for name in "abc"]
    fetching = asyncio.gather(*(one.fetch([blob]) for one in nodes))
    await asyncio.sleep(0.1)
    released.set()
    await fetching
    paths = [one.cache.path(blob) for one in nodes]
    assert swarm.asked == [blob]
    assert all(path.samefile(paths[0]) for path in paths)
    assert blob_of(paths[2]) == blob


async def test_a_node_does_not_wait_for_one_that_does_not_get_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blob_fetcher, "SOURCE_REST_S", 0.2)
    (tmp_path / "coordinator").mkdir()
    blob = blob_in(tmp_path / "coordinator")
    held = BaseFilesHere(users_folder()).turn(blob)
    assert held is not None
    swarm = Swarm(tmp_path / "coordinator")
    await node(tmp_path / "a", blob, swarm).fetch([blob])
    assert swarm.asked == [blob]
    held.release()


async def test_a_download_of_the_hubs_cache_is_used_and_left_as_it_is(tmp_path: Path, own_cache: Path) -> None:
    (tmp_path / "model").mkdir()
    blob, swarm = blob_in(tmp_path / "model"), Swarm()
    snapshot = cached(own_cache, "Qwen/Qwen3-8B", tmp_path / "model")
    found = node(tmp_path / "a", blob, swarm)
    await found.fetch([blob])
    assert swarm.asked == []
    assert found.cache.path(blob).samefile(snapshot / blob.hash)
    found.cache.drop(blob)
    assert blob_of(snapshot / blob.hash) == blob


async def test_a_cache_without_links_is_found_by_the_name(tmp_path: Path, own_cache: Path) -> None:
    snapshot = own_cache / "huggingface" / "hub" / "models--a--b" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    blob, swarm = blob_in(snapshot), Swarm()
    (snapshot / blob.hash).rename(snapshot / NAME)
    found = node(tmp_path / "a", blob, swarm)
    await found.fetch([blob])
    assert found.cache.path(blob).samefile(snapshot / NAME)


async def test_a_damaged_file_of_a_cache_is_not_taken(tmp_path: Path, own_cache: Path) -> None:
    (tmp_path / "model").mkdir()
    blob = blob_in(tmp_path / "model")
    damaged = cached(own_cache, "a/b", tmp_path / "model").resolve() / blob.hash
    damaged.write_bytes(bytes(SIZE))
    found = node(tmp_path / "a", blob, Swarm(tmp_path / "model"))
    await found.fetch([blob])
    assert blob_of(found.cache.path(blob)) == blob
    assert damaged.read_bytes() == bytes(SIZE)


async def test_a_file_of_another_disk_is_used_by_a_link(tmp_path: Path, own_cache: Path) -> None:
    (tmp_path / "model").mkdir()
    blob = blob_in(tmp_path / "model")
    with small_disk(own_cache, 3):
        cached(own_cache, "a/b", tmp_path / "model")
        found = node(tmp_path / "a", blob, Swarm())
        await found.fetch([blob])
        assert (found.cache.folder / blob.hash).is_symlink()
        assert blob_of(found.cache.path(blob)) == blob
    assert not found.cache.has(blob)  # the other disk is gone
    (tmp_path / "coordinator").mkdir()
    again = node(tmp_path / "a", blob_in(tmp_path / "coordinator"), Swarm(tmp_path / "coordinator"))
    await again.fetch([blob])
    assert blob_of(again.cache.path(blob)) == blob


def test_what_others_have_here_takes_no_room_of_the_node(tmp_path: Path, own_cache: Path) -> None:
    base = base_folder(tmp_path / "base", parts=2)
    _, contract, _ = made(base, tmp_path / "blobs")
    room, state = Room(1, "", 1000, "--max-disk"), tmp_path / "node"
    sizes = [file.stat().st_size for file in base.glob("*.safetensors")]
    assert with_base_here(room, contract, state, users_folder()).disk_bytes == 1000
    cached(own_cache, "a/b", base)
    assert with_base_here(room, contract, state, users_folder()).disk_bytes == 1000 + sum(sizes)
    cache = BlobCache(state / "blobs")
    first, second = contract.model.blobs  # type: ignore[attr-defined]
    assert cache.adopt(first, next(BaseFilesHere(None).find(first, "")))
    assert with_base_here(room, contract, state, users_folder()).disk_bytes == 1000 + sum(sizes)
    (cache.folder / second.hash).write_bytes(bytes(second.size))  # a copy of its own
    assert with_base_here(room, contract, state, users_folder()).disk_bytes == 1000 + first.size
