"""Copies of the coordinator's replica, for what takes longer than a step: measurements, snapshots and audits."""

from __future__ import annotations

import asyncio
from pathlib import Path

from thinwire_coordinator.hall.ledger.kept_replica import KeptReplica, keep
from thinwire_coordinator.hall.workers import Job, Workers
from thinwire_proto.exact.replica import FrozenReplica, Replica


class Copies:
    """Takes copies, in files of the state directory. replica: the coordinator's own."""

    def __init__(self, folder: Path, replica: Replica, workers: Workers) -> None:
        self._folder = folder
        self._replica = replica
        self._workers = workers

    def take(self) -> asyncio.Future[KeptReplica]:
        """Copy the replica at the step that it has when the queued jobs of its worker are done. The future gets an
        OSError if the disk fails."""
        freezing = self._workers.submit(Job.FREEZE_REPLICA, self._replica.freeze)
        return asyncio.ensure_future(self._written(freezing))

    async def _written(self, freezing: asyncio.Future[FrozenReplica]) -> KeptReplica:
        return await self._workers.submit(Job.WRITE_COPY, keep, await freezing, self._folder)
