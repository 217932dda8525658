"""Fetches blobs into the cache: from the addresses in the contract first, and then from the swarm.

A download that broke off is continued, from whichever source comes next. A blob appears in the cache only after its
hash was checked, so a source can cost time, but cannot change what a node trains on.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from thinwire_common.logs import tell
from thinwire_node.backoff import Backoff
from thinwire_node.data_addresses import PUBLIC, DataAddresses
from thinwire_node.exchange.port import LinkLost, Refused
from thinwire_node.limits.throttle import Throttle
from thinwire_node.session.download import (
    BYTES_LEAST,
    DiskFailed,
    SourceFailed,
    SourceRefused,
    SourceSilent,
    download,
)
from thinwire_node.session.record import Record
from thinwire_node.storage.blob_cache import BlobCache
from thinwire_proto.blobs import Blob
from thinwire_proto.errors import PayloadError, RemoteError
from thinwire_proto.limits import FETCH_SILENT_S, SOURCE_REST_S

log = logging.getLogger("thinwire.node")

ATTEMPTS_MAX = 3
"""Times that all sources are tried for one blob."""
SWARM = "the coordinator"

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
    ) -> None:
        self.cache = cache
        self.record = record
        self._sources: dict[str, Fetch] = {url: _from(url, allowed, throttle) for url in urls} | {SWARM: from_swarm}
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
            if (most := self.cache.most_bytes(blob)) is not None and blob.size > most:
                raise NoRoom(blob, f"it is larger than the {most:,} bytes that the node may use (--max-disk)")
            backoff, reasons = Backoff(None, self._random), dict[str, SourceFailed]()
            for attempt in range(ATTEMPTS_MAX):
                if attempt:
                    await asyncio.sleep(backoff.jittered_s())
                    backoff.lengthen()
                for source in self._in_order(attempt):
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

    def _in_order(self, attempt: int) -> list[str]:
        """The sources to try. Those that were silent a moment ago come last, and only in the first attempt."""
        now = asyncio.get_running_loop().time()
        rests = {source: self._rests_until.get(source, 0.0) > now for source in self._sources}
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


def _from(url: str, allowed: DataAddresses, throttle: Throttle | None) -> Fetch:
    async def fetch(blob: Blob, path: Path) -> None:
        await download(f"{url.rstrip('/')}/{blob.hash}", blob.size, path, allowed, throttle)

    return fetch


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
