"""Fetches blobs into the cache: from the addresses in the contract first, and then from the swarm. What this machine
has of a frozen base already is not fetched.

A download that broke off is continued, from whichever source comes next. A blob appears in the cache only after its
hash was checked, so a source can cost time, but cannot change what a node trains on.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock

from thinwire_common.logs import tell
from thinwire_node.backoff import Backoff
from thinwire_node.data_addresses import PUBLIC, DataAddresses
from thinwire_node.exchange.port import LinkLost, Refused
from thinwire_node.limits.throttle import Throttle
from thinwire_node.session.download import BYTES_LEAST, DiskFailed, SourceFailed, SourceRefused, SourceSilent, download
from thinwire_node.session.record import Record
from thinwire_node.storage.base_files import BaseFilesHere
from thinwire_node.storage.blob_cache import PART, BlobCache
from thinwire_proto.blobs import Blob
from thinwire_proto.errors import PayloadError, RemoteError
from thinwire_proto.limits import FETCH_SILENT_S, SOURCE_REST_S

log = logging.getLogger("thinwire.node")

ATTEMPTS_MAX = 3
"""Times that all sources are tried for one blob."""
SWARM = "the coordinator"
TURN_EVERY_S = 1.0
"""Pause between looks whether another node of this machine has fetched a file."""

Fetch = Callable[[Blob, Path], Awaitable[None]]


class BlobUnavailable(RemoteError):
    """No source gave a blob. The text says what each of them did.

    link_lost: whether the swarm itself could not be asked."""

    def __init__(self, blob: Blob, reason: str, *, link_lost: bool = False) -> None:
        super().__init__(f"{blob.hash[:16]}… ({blob.size:,} bytes) cannot be read: {reason}")
        self.blob = blob
        self.link_lost = link_lost


class NoRoom(BlobUnavailable):
    """A blob does not fit onto this machine's disk, or cannot be written to it."""


class _LinkLost(SourceFailed):
    """The connection to the swarm is lost, or the session is."""


@dataclass(frozen=True)
class BaseSources:
    """Where files of a frozen base can be had, beside where all blobs are. names: in the base's folder; empty: not
    known. urls: addresses of folders with the files by their names. here: the files that this machine has."""

    names: Mapping[Blob, str] = field(default_factory=dict)
    urls: Sequence[str] = ()
    here: BaseFilesHere = field(default_factory=lambda: BaseFilesHere(None))


class BlobFetcher:
    """Fetches blobs one at a time.

    urls: addresses of folders with files that are named by their hash. from_swarm: see `Exchange.blob`.
    record: counts what was fetched. allowed: which of the addresses the volunteer allows. throttle: see `download`."""

    def __init__(
        self,
        cache: BlobCache,
        urls: Sequence[str],
        from_swarm: Fetch,
        randomness: random.Random,
        record: Record,
        allowed: DataAddresses = PUBLIC,
        throttle: Throttle | None = None,
        base: BaseSources | None = None,
    ) -> None:
        self.cache = cache
        self.record = record
        self._base = base or BaseSources()
        named = {url: _from(url, allowed, throttle, self._base.names) for url in self._base.urls}
        by_hash = {url: _from(url, allowed, throttle) for url in urls}
        self._sources: dict[str, Fetch] = named | by_hash | {SWARM: from_swarm}
        self._rests_until: dict[str, float] = {}
        self._random = randomness
        self._one_at_a_time = asyncio.Lock()

    async def fetch(self, blobs: Sequence[Blob], wanted_by: str = "task") -> None:
        """Fetch the blobs that are not here. All of them stay until the next call with the same `wanted_by`.

        Raises BlobUnavailable."""
        self.cache.want(wanted_by, blobs)
        for blob in blobs:
            await self.fetch_one(blob)

    async def fetch_one(self, blob: Blob) -> None:
        """Fetch a blob, unless it is here. Raises BlobUnavailable."""
        async with self._one_at_a_time:
            if await asyncio.to_thread(self.cache.has, blob) or await asyncio.to_thread(self.cache.take_in_left, blob):
                return
            if blob not in self._base.names:
                await self._fetch_new(blob)
                return
            turn = await self._turn(blob)
            try:
                if not await self._adopted(blob):
                    self._base.here.tell(blob, self.cache.folder / blob.hash)
                    await self._fetch_new(blob)
            finally:
                if turn is not None:
                    turn.release()

    async def _turn(self, blob: Blob) -> FileLock | None:
        """Wait while another node of this machine fetches the blob, as long as it gets on."""
        here, came, since, is_told = self._base.here, -1, 0.0, False
        while True:
            try:
                return here.turn(blob)
            except BlockingIOError:
                told, now = here.told(blob), asyncio.get_running_loop().time()
            if not is_told:
                log.info("another node of this machine fetches %s…: waiting for it", blob.hash[:16])
                is_told = True
            size = _size_of(told.with_name(told.name + PART)) if told is not None else 0
            if size != came:
                came, since = size, now
            elif now - since > SOURCE_REST_S:
                return None
            await asyncio.sleep(TURN_EVERY_S)

    async def _adopted(self, blob: Blob) -> bool:
        """Take the blob from elsewhere on this machine. Returns whether it was there."""
        for path in await asyncio.to_thread(lambda: [*self._base.here.find(blob, self._base.names[blob])]):
            if await asyncio.to_thread(self.cache.adopt, blob, path):
                log.info("%s… is on this machine already: %s", blob.hash[:16], path)
                return True
        return False

    async def _fetch_new(self, blob: Blob) -> None:
        """Fetch a blob from one of the sources. Raises BlobUnavailable."""
        if (most := self.cache.most_bytes(blob)) is not None and blob.size > most:
            raise NoRoom(blob, f"it is larger than the {most:,} bytes that the node may use (--max-disk)")
        backoff, reasons = Backoff(None, self._random), dict[str, SourceFailed]()
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                await asyncio.sleep(backoff.jittered_s())
                backoff.lengthen()
            for source in self._in_order(attempt, blob):
                try:
                    await self._fetch_from(source, blob)
                    return
                except SourceFailed as error:
                    if isinstance(error, SourceSilent):
                        self._rests_until[source] = asyncio.get_running_loop().time() + SOURCE_REST_S
                    if isinstance(error, SourceRefused):
                        del self._sources[source]  # it would be refused for every blob
                    reasons[source] = error
                    text, why = f"{source}: {blob.hash[:16]}…: {error}", str(error)
                    tell(log, logging.WARNING, "node.source_failed", text, place=source, blob=blob.hash, reason=why)
        reason = "; ".join(f"{source}: {why}" for source, why in reasons.items())
        raise BlobUnavailable(blob, reason, link_lost=isinstance(reasons.get(SWARM), _LinkLost))

    def _in_order(self, attempt: int, blob: Blob) -> list[str]:
        """The sources to try. Those that were silent a moment ago come last, and only in the first attempt."""
        now = asyncio.get_running_loop().time()
        not_there = () if self._base.names.get(blob) else self._base.urls
        there = (source for source in self._sources if source not in not_there)
        rests = {source: self._rests_until.get(source, 0.0) > now for source in there}
        return sorted((source for source in rests if not (rests[source] and attempt)), key=rests.__getitem__)

    async def _fetch_from(self, source: str, blob: Blob) -> None:
        part = await asyncio.to_thread(self.cache.part, blob)
        if (lacking := await asyncio.to_thread(self.cache.lacking_bytes, blob)) > 0:
            # looked at before a byte is asked for: it would be fetched in vain, again and again
            raise NoRoom(blob, f"the disk with {self.cache.folder} lacks {lacking:,} bytes for it")
        try:
            await self._watched(self._sources[source](blob, part), part)
            await asyncio.to_thread(self.cache.take_in, blob)
        except (DiskFailed, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            if await asyncio.to_thread(self.cache.make_room, self.cache.bytes_max):
                raise SourceFailed(f"it could not be written: {reason}; older files were deleted") from None
            part.unlink(missing_ok=True)  # the node's own state needs the room
            raise NoRoom(blob, f"it cannot be written to {self.cache.folder}: {reason}") from None
        except LinkLost as error:
            raise _LinkLost(str(error)) from None
        except (Refused, PayloadError) as error:
            raise SourceFailed(str(error)) from None
        self.record.fetched_bytes["coordinator" if source == SWARM else "url"] += blob.size

    async def _watched(self, fetching: Awaitable[None], part: Path) -> None:
        """Wait for a download. Raises SourceSilent if it becomes too slow to ever be of use."""
        task = asyncio.ensure_future(fetching)
        try:
            before = _size_of(part)
            while not task.done():
                await asyncio.wait({task}, timeout=FETCH_SILENT_S)
                came, before = _size_of(part) - before, _size_of(part)
                if not task.done() and 0 <= came < BYTES_LEAST:
                    raise SourceSilent(f"only {came:,} bytes came in {FETCH_SILENT_S:g} s")
            await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _from(
    url: str, allowed: DataAddresses, throttle: Throttle | None, names: Mapping[Blob, str] | None = None
) -> Fetch:
    """names: of files in a folder that has them by name."""

    async def fetch(blob: Blob, path: Path) -> None:
        name = blob.hash if names is None else names[blob]
        await download(f"{url.rstrip('/')}/{name}", blob.size, path, allowed, throttle)

    return fetch


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
