"""Tests of fetching blobs over real sockets: bad sources cost time, and change nothing."""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
from pathlib import Path

import pytest

from support.disks import fill, make_room, small_disk
from support.file_server import FileServer
from thinwire_node.data_addresses import LOOPBACK, DataAddresses
from thinwire_node.exchange.port import Refused
from thinwire_node.session import blob_fetcher, download
from thinwire_node.session.blob_fetcher import BlobFetcher, BlobUnavailable, NoRoom
from thinwire_node.session.record import Record
from thinwire_node.storage.blob_cache import BlobCache
from thinwire_proto.blobs import Blob

SIZE = 300_000
SILENT_S = 0.3


@pytest.fixture(autouse=True)
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thinwire_node.backoff.BACKOFF_FIRST_S", 0.01)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (blob_fetcher, download):
        monkeypatch.setattr(module, "FETCH_SILENT_S", SILENT_S)


def blob_in(folder: Path, seed: int = 1, size: int = SIZE) -> Blob:
    data = random.Random(seed).randbytes(size)
    blob = Blob(hashlib.sha256(data).hexdigest(), size)
    (folder / blob.hash).write_bytes(data)
    return blob


class Swarm:
    """A swarm that has the blobs of a folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self.asked: list[Blob] = []

    async def blob(self, blob: Blob, path: Path) -> None:
        self.asked.append(blob)
        if self._folder is None:
            raise Refused("this coordinator does not have the blob")
        await asyncio.to_thread(self._copy_rest, self._folder / blob.hash, path)

    def _copy_rest(self, source: Path, path: Path) -> None:
        offset = path.stat().st_size if path.exists() else 0
        with path.open("ab") as file:
            file.write(source.read_bytes()[offset:])


def fetcher(tmp_path: Path, urls: list[str], swarm: Swarm, bytes_max: int = 1 << 30) -> BlobFetcher:
    cache, own = BlobCache(tmp_path / "cache" / "blobs", bytes_max), DataAddresses(networks=LOOPBACK)
    return BlobFetcher(cache, urls, swarm.blob, random.Random(1), Record(), own)


async def test_an_address_is_asked_before_the_swarm(tmp_path: Path, server: FileServer) -> None:
    blob, swarm = blob_in(server.folder), Swarm()
    found = fetcher(tmp_path, [server.url + "/"], swarm)
    await found.fetch([blob, blob])
    assert found.cache.path(blob).read_bytes() == (server.folder / blob.hash).read_bytes()
    assert (server.asked, swarm.asked) == ([(blob.hash, 0)], [])
    assert found.record.fetched_bytes == {"url": SIZE, "coordinator": 0}


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("stall", r"bytes came in 0.3 s|nothing came for 0.3 s"),
        ("truncate", "the connection failed: IncompleteRead|the file broke off after 150,000 of 300,000 bytes"),
        ("flip", "300,000 bytes came with the hash"),
        ("longer", "the file there has 300,001 bytes, and must have 300,000"),
        ("missing", "HTTP 404"),
        ("redirect:file:///etc/passwd", "to url 'file:///etc/passwd' is not allowed"),
        ("redirect:ftp://127.0.0.1/x", "it leads to ftp:"),
        ("redirect:loop", "HTTP 302"),
    ],
)
async def test_a_bad_address_is_named_and_the_swarm_gives_the_blob(
    tmp_path: Path,
    server: FileServer,
    fault: str,
    says: str,
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
) -> None:
    if fault == "stall":
        request.getfixturevalue("impatient")
    blob = blob_in(server.folder)
    server.fault = fault.replace("loop", f"{server.url}/{blob.hash}")
    found = fetcher(tmp_path, [server.url], Swarm(server.folder))
    await found.fetch([blob])
    assert found.cache.path(blob).read_bytes() == (server.folder / blob.hash).read_bytes()
    (fields,) = [vars(one)["fields"] for one in caplog.records if vars(one).get("event") == "node.source_failed"]
    assert (fields["place"], fields["blob"]) == (server.url, blob.hash)
    assert re.search(says, fields["reason"])


@pytest.mark.usefixtures("impatient")
async def test_a_silent_address_is_asked_last_for_a_while(tmp_path: Path, server: FileServer) -> None:
    one, two = blob_in(server.folder, 1), blob_in(server.folder, 2)
    server.fault = "stall"
    found = fetcher(tmp_path, [server.url], Swarm(server.folder))
    await found.fetch([one, two])
    assert server.asked == [(one.hash, 0)]


async def test_a_download_that_broke_off_is_continued(tmp_path: Path, server: FileServer) -> None:
    blob = blob_in(server.folder)
    server.fault = "truncate"
    with pytest.raises(BlobUnavailable, match="this coordinator does not have the blob"):
        await fetcher(tmp_path, [server.url], Swarm()).fetch([blob])
    assert [offset for _, offset in server.asked] == [0, 150_000, 225_000]
    server.fault = ""
    await fetcher(tmp_path, [server.url], Swarm()).fetch([blob])  # another process
    assert server.asked[-1] == (blob.hash, 262_500)


async def test_a_part_that_is_no_beginning_of_the_blob_is_fetched_anew(tmp_path: Path, server: FileServer) -> None:
    blob = blob_in(server.folder)
    found = fetcher(tmp_path, [server.url], Swarm())
    found.cache.part(blob).write_bytes(b"x" * 1000)
    await found.fetch([blob])
    assert server.asked == [(blob.hash, 1000), (blob.hash, 0)]


@pytest.mark.parametrize("url", ["file:///etc", "ftp://127.0.0.1/x", "data:text/plain,"])
async def test_other_schemes_are_never_read(tmp_path: Path, url: str) -> None:
    (tmp_path / "served").mkdir()
    blob = blob_in(tmp_path / "served")
    with pytest.raises(BlobUnavailable, match="a node never reads addresses of"):
        await fetcher(tmp_path, [url], Swarm()).fetch([blob])


async def test_a_full_disk_gives_up_old_blobs_first_and_then_says_so(tmp_path: Path, server: FileServer) -> None:
    one, two = blob_in(server.folder, 1, 1 << 20), blob_in(server.folder, 2, 1 << 20)
    with small_disk(tmp_path / "cache", 3):
        found = fetcher(tmp_path, [server.url], Swarm())
        await found.fetch([one])
        fill(tmp_path / "cache")
        await found.fetch([two])
        assert not found.cache.has(one)
        asked = list(server.asked)
        with pytest.raises(NoRoom, match=r"the disk with .* lacks 1,048,576 bytes for it"):
            await found.fetch([two, one])
        assert server.asked == asked
        assert [path.name for path in found.cache.folder.iterdir()] == [two.hash]
        make_room(tmp_path / "cache")
        await found.fetch([two, one])
