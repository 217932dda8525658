"""The replica of one step in a file, for what takes longer than a step.

A copy in memory would be as large as the replica, and a measurement, a snapshot and an audit would each have one. The
file is mapped, so what is read of it is the system's cache, which any program may have when memory is short.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import weakref
from contextlib import AbstractContextManager
from pathlib import Path

from torch import Tensor

from thinwire_common.files import rename_synced
from thinwire_coordinator.hall.workers import Job, Workers
from thinwire_proto.exact.mapped import MappedTensors
from thinwire_proto.exact.replica import STATE_LATER, FrozenReplica, Replica, hash_of
from thinwire_proto.exact.tensor_files import HEAD_BYTES
from thinwire_proto.exact.update import Update

_NUMBERS = itertools.count()
"""These numbers tell files of the same step apart. A killed process leaves files with the ending of all temporary ones;
see `ledger.retention`."""


class KeptReplica(Replica):
    """A replica that can only be read. Its file is deleted with it, unless it has become a snapshot."""

    def __init__(self, frozen: FrozenReplica, path: Path) -> None:
        self._mapped = MappedTensors(path)
        self._path = path
        self._remove = weakref.finalize(self, _remove, path)
        super().__init__(frozen.contract, self._mapped.tensors, frozen.step, frozen.head, is_checked=True)

    def apply(self, update: Update, head: bytes) -> None:
        raise TypeError("a replica in a file can only be read")

    def in_use(self) -> AbstractContextManager[object]:
        return self._mapped.in_use()

    def give_back(self, tensor: Tensor) -> None:
        self._mapped.give_back(tensor)

    def state_hash(self) -> bytes:
        return hash_of(self._mapped.one_by_one(self.state))

    def become_snapshot(self, path: Path) -> None:
        """Put the state's hash into the file, and rename it durably. Raises OSError."""
        state = self.state_hash().hex()
        with self._path.open("r+b") as file:
            header_bytes = int.from_bytes(file.read(HEAD_BYTES), "little")
            entry = f'"state":"{STATE_LATER}"'.encode()
            file.seek(HEAD_BYTES + file.read(header_bytes).index(entry))
            file.write(entry.replace(STATE_LATER.encode(), state.encode()))
        rename_synced(self._path, path)
        self._remove.detach()


def keep(frozen: FrozenReplica, folder: Path) -> KeptReplica:
    """Write a replica to a temporary file in the snapshots of a state directory. Raises OSError."""
    path = folder / "snapshots" / f"{frozen.step}-{next(_NUMBERS)}.part"
    try:
        frozen.write(path)
        return KeptReplica(frozen, path)
    except BaseException:
        _remove(path)
        raise


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # on Windows while it is mapped; the next start removes it
        path.unlink(missing_ok=True)


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
