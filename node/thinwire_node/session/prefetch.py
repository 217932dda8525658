"""Fetches the data that a node will train on, in the order of first use, so that training need not wait for them.

A node knows its lease, and the positions that it will be granted next. A shard that no source gives, or whose contents
cannot be used, is *skipped*: its positions are passed over, counted and reported, and it is tried again later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from thinwire_common.logs import tell
from thinwire_common.within import set_or_after
from thinwire_node.session.blob_fetcher import BlobFetcher, BlobUnavailable
from thinwire_node.session.record import Record
from thinwire_node.training.lease import Lease
from thinwire_proto.blobs import Blob, BlobMissing
from thinwire_proto.errors import PayloadError
from thinwire_proto.limits import LOOK_AGAIN_S, SOURCE_REST_S
from thinwire_proto.task import DataSource

log = logging.getLogger("thinwire.node")


class Prefetch:
    """The data of one session. changed: called when training may go on."""

    def __init__(
        self,
        data: DataSource,
        fetcher: BlobFetcher,
        record: Record,
        now: Callable[[], float],
        changed: Callable[[], None],
    ) -> None:
        self._data = data
        self._fetcher = fetcher
        self._record = record
        self._now = now
        self._changed = changed
        self._needs_blobs = bool(data.needs((range(1),)))
        self._upcoming: tuple[range, ...] = ()
        self._lease = Lease()
        self._ready: set[Blob] = set()
        self._skipped: dict[Blob, float] = {}  # until when; it is tried again then
        self._look = asyncio.Event()
        fetcher.cache.want("evaluation", ())  # those of an earlier session

    def renew(self, lease: Lease, upcoming: Sequence[range] = ()) -> None:
        """Take in a lease, and what will be granted next as far as it is known."""
        self._lease, self._upcoming = lease, tuple(upcoming)
        self.look_again()

    def look_again(self) -> None:
        """Reconsider what to fetch: the lease has moved on."""
        if self._needs_blobs:
            self._look.set()

    def trainable(self, lease: Lease, samples: int) -> int:
        """Count the positions from the head of the lease on that have their data here; at most `samples`."""
        head = lease.head(samples)
        found = sum(len(run) for run in head)
        if not self._needs_blobs or self._have(head):
            return found
        found = 0
        for position in (position for run in head for position in run):
            if not self._have((range(position, position + 1),)):
                break
            found += 1
        return found

    def skips_within(self, lease: Lease, samples: int) -> bool:
        """Whether the data of one of the next positions cannot be read."""
        return bool(self._skipped) and not self._skipped.keys().isdisjoint(self._data.needs(lease.head(samples)))

    def pass_over(self, lease: Lease) -> None:
        """Pass over the positions at the head of the lease whose data cannot be read."""
        passed = 0
        while self._skipped and (head := lease.head(1)) and not self._skipped.keys().isdisjoint(self._data.needs(head)):
            lease.take(1)
            passed += 1
        self._note_skipped(passed)

    def lost(self, blob: Blob, samples: int) -> None:
        """Note that a blob vanished from the disk when `samples` samples were about to be read."""
        self._ready.discard(blob)
        self._note_skipped(samples)
        self._look.set()

    def _note_skipped(self, samples: int) -> None:
        self._record.samples_skipped += samples

    def _have(self, positions: Sequence[range]) -> bool:
        return self._ready.issuperset(self._data.needs(positions))

    async def run(self) -> None:
        while True:
            self._look.clear()
            blob = self._next(self._want())
            if blob is not None:
                await self._fetch(blob)
            elif self._skipped:
                await set_or_after(self._look, SOURCE_REST_S)
            else:
                await self._look.wait()

    async def fetch_held_out(self, blobs: Sequence[Blob]) -> None:
        """Fetch what a part of a held-out loss needs, if there is room for it. It stays until the next call, and takes
        the room of what would be trained last. Raises BlobUnavailable."""
        cache = self._fetcher.cache
        cache.want("evaluation", blobs)
        self._want()  # before a file is deleted for the new ones, so that nobody trains on it
        self.look_again()
        if (fit := cache.room_for(blobs, "evaluation")) < len(blobs):
            cache.want("evaluation", ())
            raise BlobUnavailable(blobs[fit], "the cache has no room for it beside the next shard to train on")
        await self._fetcher.fetch(blobs, wanted_by="evaluation")

    def _want(self) -> list[Blob]:
        """Want the blobs of the lease, in the order of first use: as many as the cache can hold, and at least one."""
        cache, runs = self._fetcher.cache, (*self._lease.runs, *self._upcoming)
        needed = [blob for blob in self._data.needs(runs) if self._skipped.get(blob, 0.0) < float("inf")]
        if needed and not cache.room_for(needed, "lease"):
            cache.want("evaluation", ())  # training goes first
        wanted = needed[: max(1, cache.room_for(needed, "lease"))]
        cache.want("lease", wanted)
        self._ready &= set(wanted)
        return wanted

    def _next(self, wanted: Sequence[Blob]) -> Blob | None:
        now = self._now()
        missing = (blob for blob in wanted if blob not in self._ready)
        return next((blob for blob in missing if self._skipped.get(blob, now) <= now), None)

    async def _fetch(self, blob: Blob) -> None:
        try:
            await self._fetcher.fetch_one(blob)
            await asyncio.to_thread(self._data.check, blob)
        except (BlobUnavailable, BlobMissing) as error:
            if isinstance(error, BlobUnavailable) and error.link_lost:
                await set_or_after(self._look, LOOK_AGAIN_S)  # the session is about to end, and the next one goes on
                return
            self._skip(blob, str(error), self._now() + SOURCE_REST_S)
        except PayloadError as error:
            self._skip(blob, str(error), float("inf"))  # it has the right hash, so it will not change
        else:
            self._ready.add(blob)
            self._skipped.pop(blob, None)
        self._changed()

    def _skip(self, blob: Blob, reason: str, until: float) -> None:
        if blob not in self._skipped:
            self._record.shards_skipped += 1
            text = f"a shard is skipped, and its samples are passed over: {reason}"
            tell(log, logging.WARNING, "node.shard_skipped", text, blob=blob.hash, bytes=blob.size, reason=reason)
        self._skipped[blob] = until
