"""Saves a node's state: momentum and replica periodically, and the names of contributions before they are sent.

The momentum on disk still contains the contributions that were sent after the save. So the name of a contribution is
written before it is sent. Names leave the list only once a newer momentum is on disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from thinwire_node.storage.state import KeptMomentum, NodeState, Written
from thinwire_node.training.threads import NodeJob, Threads
from thinwire_proto.exact.replica import Replica
from thinwire_proto.limits import save_every_s

log = logging.getLogger("thinwire.node")


@dataclass(frozen=True)
class Passing:
    """A state that is written to temporary files.

    last_sent: the last contribution sent before. pending: the one without an outcome."""

    files: tuple[Written, ...]
    last_sent: bytes | None
    pending: bytes | None


WriteState = Callable[[], Awaitable[Passing]]
"""Queues a job for the compute thread that writes the state."""


class Saver:
    """Saves the state of one node. `now`: seconds on a monotonic clock. `round_s`: the length of a round."""

    def __init__(self, state: NodeState, threads: Threads, now: Callable[[], float], round_s: float) -> None:
        self._state = state
        self._threads = threads
        self._now = now
        self._round_s = round_s
        self._sent_since = state.sent() or []  # contributions sent after the save on disk
        self._saving: asyncio.Future[None] | None = None
        self._noting: asyncio.Future[None] | None = None
        self._is_noted = True  # the head of the last update is written, or being written
        self._saved_at = now()
        self._save_s = self._write_s = 0.0

    @property
    def is_due(self) -> bool:
        """Whether it is time for the next save."""
        return self._now() - self._saved_at > save_every_s(self._round_s, self._save_s)

    def write(self, replica: Replica | None, momentum: KeptMomentum) -> Passing:
        """Write the state to temporary files; without a replica, the momentum alone. Runs on the compute thread, so
        nothing changes meanwhile, and no copy of it is needed in memory. The time until the next save starts here."""
        self._saved_at = began = self._now()
        files = [self._state.write_momentum(momentum)]
        if replica is not None:
            files.append(self._state.write_replica(replica))
        self._write_s = self._now() - began
        pending = momentum.pending.hash if momentum.pending is not None else None
        return Passing(tuple(files), self._sent_since[-1] if self._sent_since else None, pending)

    async def note_sent(self, contribution: bytes) -> None:
        """Write the name of a contribution to disk. The contribution may be sent once this returns."""
        self._sent_since.append(contribution)
        await self._write_sent()

    def note_head(self) -> None:
        """Write the head of the update that was applied in the background, because a sync of a slow disk takes long.
        While a head is being written, only the newest waits. Raises OSError if the last one could not be written."""
        self._is_noted = False
        if self._noting is not None and self._noting.done() and not self._noting.cancelled():
            self._noting.result()
        if self._noting is None or self._noting.done():
            self._noting = asyncio.ensure_future(self._note_heads())

    async def _note_heads(self) -> None:
        while not self._is_noted:
            self._is_noted = True
            await self._threads.saver.run(NodeJob.NOTE, self._state.write_head)

    def begin(self, write: WriteState) -> None:
        """Save in the background, unless a save is under way. Raises OSError if the last one failed."""
        if self._saving is not None and self._saving.done() and not self._saving.cancelled():
            self._saving.result()
        if self._saving is None or self._saving.done():
            # queued at once: the job must come before the next micro-batch, from which a rule may learn
            self._saving = asyncio.ensure_future(self._publish(write()))

    async def save(self, write: WriteState) -> None:
        """Write the state, sync it to disk, then shorten the list of sent contributions. A save in the background that
        failed is made good by this one. Raises OSError if this one fails, or if the head could not be written."""
        earlier = self._saving
        if earlier is not None:
            await asyncio.wait({earlier})  # both write the same temporary files
            self._saving = None
        failure = earlier.exception() if earlier is not None and not earlier.cancelled() else None
        self._saving = saving = asyncio.ensure_future(self._publish(write()))
        try:
            await asyncio.shield(saving)  # goes on if the caller is cancelled, and the next save waits for it
        finally:
            if saving.done():
                self._saving = None
        if failure is not None:
            text = f"a save failed, but a later one succeeded: {failure}"
            log.warning("%s", text)
        await self.finish()

    async def _publish(self, written: Awaitable[Passing]) -> None:
        passing = await written
        began = self._now()
        await self._threads.saver.run(NodeJob.SAVE, self._state.publish, *passing.files)
        self._save_s = self._write_s + self._now() - began
        known = [name for name in (passing.last_sent, passing.pending) if name]
        ends = [self._sent_since.index(name) + 1 for name in known if name in self._sent_since]
        self._sent_since = self._sent_since[max(ends, default=0) :]
        await self._write_sent()

    async def finish(self) -> None:
        """Wait for what is being written. Cancelling the caller does not cancel that. Raises OSError if it failed."""
        for writing in (self._saving, self._noting):
            if writing is not None and not writing.cancelled():
                await asyncio.shield(writing)

    def forget_sent(self) -> None:
        """Clear the list of sent contributions, because their momentum is gone."""
        self._sent_since = []

    async def drop(self) -> None:
        """Remove the momentum from disk."""
        await self._threads.journal.run(NodeJob.NOTE, self._state.drop_momentum)

    async def _write_sent(self) -> None:
        await self._threads.journal.run(NodeJob.NOTE, self._state.save_sent, list(self._sent_since))
